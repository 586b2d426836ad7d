#!/bin/bash
# Builds the bench of the kernels that move rows and runs it: on a machine with two to eight Hopper GPUs and nvcc.
#   move.sh [RANKS [rows | until]]    the tables; RANKS: default a rank on each GPU, else ranks share GPUs; rows, or the time until they are there alone
# Environment
#   MOVE_BENCH=FILE    a bench that is built already
#   BUILD_ONLY=FILE    builds it there, and no more
#   NAME=TEXT          files are NAME.json, NAME.txt; default move_, the GPU, how many: move_h200x2
#   COMMIT=TEXT        for the JSON, where git cannot be asked
# The files go to $OUT, or to bench/results.
set -u
cd "$(dirname "$0")/../.." || exit 1
. bench/gpus.sh
give_help bench/move/move.sh "$@"
[ -n "${BUILD_ONLY:-}" ] || find_gpus
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
bench=${MOVE_BENCH:-${BUILD_ONLY:-$build/move_bench}}
if [ -z "${MOVE_BENCH:-}" ]; then
    "$nvcc" -Iinclude -Isrc -gencode arch=compute_90a,code=sm_90a -std=c++17 -O3 -lineinfo -o "$bench" bench/move/move_*.cu src/cuda/staged/move.cu || exit 1
fi
[ -n "${BUILD_ONLY:-}" ] && exit 0
out=${OUT:-bench/results}
mkdir -p "$out"
name=${NAME:-move_${gpu}x$gpus}
export COMMIT="${COMMIT:-$(git describe --always --dirty --abbrev=40 --exclude='*' 2> /dev/null)}"
nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,power.limit,power.draw,temperature.gpu --format=csv,noheader | tee "$out/$name.txt"
MOVE_JSON=$out/$name.json timeout 240 "$bench" "$@" | tee -a "$out/$name.txt"
exit "${PIPESTATUS[0]}"
