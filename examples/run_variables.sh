# Variables of run_e2e_test.sh and run_benchmark.sh, which source this file: model, devices and folders of a run.
refuse() { echo "$(basename "$0"): $*" >&2; exit 2; }

[ -z "${ACTOR_STRATEGY:-}" ] || refuse "ACTOR_STRATEGY=$ACTOR_STRATEGY is not supported: the trainer is a single process without sharding. \
Leave it out; set it in your own trainer."
case "${NUM_GPUS:=1}" in *[!0-9]* | 0 | "") refuse "NUM_GPUS must be a whole number from 1 on (it is '$NUM_GPUS')" ;; esac
data=${ASSAY_DATA_DIR:-data}
models=${ASSAY_MODELS_DIR:-$data/models}
if [ -n "${MODEL_ID:-}" ] && [ -z "${MODEL_PATH:-}" ]; then
  MODEL_PATH=$models/$MODEL_ID
  [ -d "$MODEL_PATH" ] || refuse "MODEL_ID=$MODEL_ID is not a model in $models, and this script downloads no models: download it, and set \
MODEL_PATH to its folder"
fi
[ -z "${MODEL_PATH:-}" ] || [ -f "$MODEL_PATH/config.json" ] || refuse "MODEL_PATH=$MODEL_PATH is not a model: it has no config.json"
python=.venv/bin/python
[ -x "$python" ] || refuse "there is no .venv: run \`make up\` once to create it"
export TRANSFORMERS_OFFLINE=1 HF_HUB_OFFLINE=1 ASSAY_HUB_OFFLINE=true OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
