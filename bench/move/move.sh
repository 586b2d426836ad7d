#!/bin/bash
# Builds the bench of the kernels that move rows and runs it: on a machine with two Hopper GPUs and nvcc, from the root of the repository.
#   move.sh            the table, and its lines as JSON in $OUT, or bench/results
#   MOVE_BENCH=FILE    a bench that is built already
#   BUILD_ONLY=FILE    builds it there, and no more
out=${OUT:-bench/results}
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
bench=${MOVE_BENCH:-${BUILD_ONLY:-$build/move_bench}}
if [ -z "$MOVE_BENCH" ]; then
    "$nvcc" -Iinclude -Isrc -gencode arch=compute_90a,code=sm_90a -std=c++17 -O3 -lineinfo -o "$bench" bench/move/move_bench.cu \
            src/cuda/staged/move.cu || exit 1
fi
[ -n "$BUILD_ONLY" ] && exit 0
mkdir -p "$out"
nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,power.limit,power.draw,temperature.gpu --format=csv | tee "$out/move.device.csv"
MOVE_JSON=$out/move.jsonl timeout 120 "$bench" | tee "$out/move.txt"
exit "${PIPESTATUS[0]}"
