#!/usr/bin/env bash
# What changes the speed of a fully asynchronous run: staleness, queue size, intervals, the division of devices, pauses.
# On a system of its own, offline; writes benchmark_results_*/performance_report.md, summary.txt, plots and a log for each scenario.
#   ./run_benchmark.sh
#   NUM_GPUS=8 BENCHMARK=full ./run_benchmark.sh
# NUM_GPUS     device slots, for generation and training together; on a machine without GPUs they are CPU slots (default 4)
# MODEL_PATH   folder of a model to generate with instead of the tiny one that is made here
# MODEL_ID     the same by the name of a model in ASSAY_MODELS_DIR
# BENCHMARK    what is run: async (default), quick, full, or one scenario; `assay benchmarks` lists them
# ENGINE, REPETITIONS, OUTPUT   simulated: generation that only takes its time; times each case is measured; folder of the results
set -euo pipefail
cd "$(dirname "$0")"
: "${NUM_GPUS:=4}"
. examples/run_variables.sh
for name in STEPS TRAIN_S; do
  [ -z "${!name:-}" ] || refuse "$name=${!name} means nothing here: a benchmark's steps and their seconds are its own, so that runs can be compared. \
Leave it out; BENCHMARK=quick has few steps, full many."
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
