#!/bin/sh
# Kernels compile where NCCL's headers lie in a folder of the system's own, as packages of a distribution put them.
# Usage: system_nccl.sh CMAKE SOURCE_DIR NVCC NCCL_LIBRARY
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$1" -S "$2" -B "$work" -DMOK_TESTS=OFF "-DMOK_NVCC=$3" -DMOK_NCCL_INCLUDE=/usr/include "-DMOK_NCCL=$4" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
grep -q 'NCCL ON' "$work/log" || { echo "the build goes without NCCL"; exit 1; }
"$1" --build "$work" --target mok_one_kernel > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
