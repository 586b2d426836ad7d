#!/bin/sh
# Builds the ladder: build.sh OUTPUT [extra nvcc flags, e.g. -DMOK_GEMM_CLUSTER=1]. Run from the root of the repository.
set -e
. bench/gpus.sh
give_help bench/ladder/build.sh "$@"
[ $# -gt 0 ] || refuse "the program to build must be named: build.sh OUTPUT [FLAG...]"
output=$1
shift
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
include="-Iinclude -Isrc -Ibench/ladder"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
for file in src/cuda/gemm/gemm_forward src/cuda/gemm/gemm_dgrad src/cuda/gemm/gemm_wgrad bench/ladder/ladder_problem bench/ladder/ladder_reference \
            bench/ladder/ladder_verify bench/ladder/ladder_speed bench/ladder/ladder_main; do
    "$nvcc" $include -gencode arch=compute_90a,code=sm_90a -O3 -lineinfo -Xcompiler -fno-exceptions,-fno-rtti "$@" -c $file.cu \
            -o "$dir/$(basename $file).o" &
    jobs="$jobs $!"
done
for file in src/cuda/gemm/gemm_launch src/cuda/gemm/gemm_fill src/cuda/tensor_map src/base/status src/base/log; do
    gcc -std=gnu17 -O2 -Wall -Wextra $include -I"$(dirname "$nvcc")/../include" -c $file.c -o "$dir/$(basename $file).o"
done
for job in $jobs; do
    wait "$job"
done
"$nvcc" -o "$output" "$dir"/*.o -lcublas
