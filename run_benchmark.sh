#!/usr/bin/env bash
# Benchmarks fully asynchronous training: effect of staleness, queue size, intervals, the division of devices, and pauses.
# Runs offline on a private system; writes benchmark_results_*/performance_report.md, summary.txt, plots and a log for each scenario.
#   ./run_benchmark.sh
#   NUM_GPUS=8 BENCHMARK=full ./run_benchmark.sh
# NUM_GPUS     device slots for generation and training together; CPU slots on a machine without GPUs (default 4)
# MODEL_PATH   folder of a model for generation, instead of the tiny model that this script creates
# MODEL_ID     alternative to MODEL_PATH: name of a model in ASSAY_MODELS_DIR
# BENCHMARK    async (default), quick, full, or the name of a scenario; `assay benchmarks` lists them
# ENGINE       real (default), or simulated: generation sleeps instead of running a model
# REPETITIONS, OUTPUT   measurements of each case; folder for the results
set -euo pipefail
cd "$(dirname "$0")"
: "${NUM_GPUS:=4}"
. examples/run_variables.sh
for name in STEPS TRAIN_S; do
  [ -z "${!name:-}" ] || refuse "$name=${!name} is not supported: a benchmark sets its own steps and their duration, so that runs are comparable. \
Remove it; BENCHMARK=quick has few steps, BENCHMARK=full has many."
done

model=()
case "${ENGINE:-real}" in
  simulated) ;;
  real)
    if [ -z "${MODEL_PATH:-}" ]; then
      MODEL_PATH=$models/addition-untrained
      [ -f "$MODEL_PATH/config.json" ] || "$python" examples/addition.py "$MODEL_PATH"
    fi
    model=(--model "$(cd "$MODEL_PATH" && pwd)")
    ;;
  *) refuse "ENGINE must be real or simulated (it is '$ENGINE')" ;;
esac
NUM_WORKERS=$NUM_GPUS exec "$python" -m workers.up --run -- assay benchmark "${BENCHMARK:-async}" "${model[@]}" \
  ${REPETITIONS:+--repetitions "$REPETITIONS"} ${OUTPUT:+--output "$OUTPUT"}
