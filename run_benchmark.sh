#!/usr/bin/env bash
# What changes the speed of a fully asynchronous run: staleness, queue size, interval between versions, number of devices, pauses.
# Offline; writes benchmark_results_*/performance_report.md, summary.txt and a log for each case.
#   ./run_benchmark.sh
#   NUM_GPUS=8 STEPS=500 ./run_benchmark.sh
# NUM_GPUS     device slots that generate; on a machine without GPUs they are CPU slots (default 1)
# MODEL_PATH   folder of a model to generate with instead of the tiny one that is made here
# MODEL_ID     the same by the name of a model in ASSAY_MODELS_DIR
# STEPS, TRAIN_S, OUTPUT   batches of each case (40), seconds of a training step (0.1), folder of the results
set -euo pipefail
cd "$(dirname "$0")"
. examples/run_variables.sh

output=${OUTPUT:-benchmark_results_$(date +%Y%m%d_%H%M%S)}
mkdir -p "$output"
measure() { # slots, further flags
  NUM_WORKERS=$1 "$python" -m workers.up --run -- "$python" examples/async_benchmark.py --slots "$1" --steps "${STEPS:-40}" \
    --train_s "${TRAIN_S:-0.1}" --models "$models" --output "$output" ${MODEL_PATH:+--model "$MODEL_PATH"} "${@:2}"
}
{
  measure "$NUM_GPUS"
  # The rest of the machine trains: with half the slots, and with one more on a machine that has just one.
  measure "$((NUM_GPUS > 1 ? NUM_GPUS / 2 : 2))" --only_division
} 2>&1 | tee "$output/benchmark.log"
echo "$output/performance_report.md"
