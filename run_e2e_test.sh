#!/usr/bin/env bash
# End-to-end test: starts a private system, runs complete asynchronous trainings on it, and stops it. Offline; about ten minutes on two cores.
#   ./run_e2e_test.sh
#   NUM_GPUS=4 MODEL_PATH=/models/Qwen2.5-0.5B-Instruct ./run_e2e_test.sh
# NUM_GPUS     device slots for generation; CPU slots on a machine without GPUs (default 1)
# MODEL_PATH   folder of a model to train, instead of the tiny model that this script creates; its reward is not required to rise
# MODEL_ID     alternative to MODEL_PATH: name of a model in ASSAY_MODELS_DIR
# SEEDS, STALENESS, STEPS, OUTPUT   random seeds ("1 2 3"), staleness limits of the runs ("2 0"), steps of a run (300), folder for the results
set -euo pipefail
cd "$(dirname "$0")"
. examples/run_variables.sh

output=${OUTPUT:-e2e_results_$(date +%Y%m%d_%H%M%S)}
mkdir -p "$output"
runs=()
for seed in ${SEEDS:-1 2 3}; do
  for staleness in ${STALENESS:-2 0}; do
    run="$python examples/async_grpo.py --seed $seed --staleness $staleness --steps ${STEPS:-300} --models '$models' --output '$output'"
    [ -z "${MODEL_PATH:-}" ] || run+=" --model '$MODEL_PATH' --least_rise=-1"
    runs+=("echo; echo '== seed $seed, staleness $staleness'; $run || failed=1")
  done
done
script="failed=0; $(printf '%s; ' "${runs[@]}") $python examples/reward_plot.py '$output'; exit \$failed"
NUM_WORKERS=$NUM_GPUS "$python" -m workers.up --run -- bash -c "$script" 2>&1 | tee "$output/e2e.log"
