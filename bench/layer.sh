#!/bin/bash
# The layer on this machine's GPUs: `mok bench` on a list of shapes, then the PyTorch + NCCL baseline on the same; one short table last.
#   layer.sh [SHAPES]     names joined by commas; default: qwen3-30b, mixtral-8x7b and the four slices
# Environment
#   MOK=FILE              a mok that is built already; else it is built in BUILD (default /tmp/b) with cmake, ninja, gcc and nvcc
#   MOK_CJSON_ROOT=DIR    where include/cjson/cJSON.h and lib/libcjson.so are, when not in the system; CMAKE_PREFIX_PATH is heeded, too
#   BENCH_OPTIONS="..."   more options of mok bench, say "--path fused" or "--skew zipf"
#   TORCH_OPTIONS="..."   the same for the baseline; SKIP_TORCH=1 leaves it out
#   TOKENS, REPEAT, WARM_UP   of both; default 8192, 30, 10
#   COMMIT=TEXT           for the JSON, where git cannot be asked
# layer.json, torch_nccl.json, layer.log and layer_table.txt go to $OUT, or to bench/results.
set -u
cd "$(dirname "$0")/.." || exit 1
shapes=${1:-qwen3-30b,mixtral-8x7b,kimi-k2-slice,glm-5.2-slice,qwen3.5-slice,deepseek-v4-pro-slice}
out=${OUT:-bench/results}
build=${BUILD:-/tmp/b}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out" "$build"
log=$out/layer.log
: > "$log"
begin=$SECONDS
failed=0
tokens=${TOKENS:-8192} repeat=${REPEAT:-30} warm_up=${WARM_UP:-10}
commit=${COMMIT:-$(git describe --always --dirty --abbrev=40 --exclude='*' 2> /dev/null)}

say() { echo "$*" | tee -a "$log"; }

# Runs a command with a limit in seconds; its output goes to the log, the end of it also here when it fails.
try() {
    name=$1 limit=$2 since=$SECONDS
    shift 2
    timeout -k 5 "$limit" "$@" > "$work/step" 2>&1
    code=$?
    { echo "== $name: $*"; cat "$work/step"; } >> "$log"
    if [ $code -ne 0 ]; then
        failed=$((failed + 1))
        say "FAILED $name: exit code $code ($((SECONDS - since)) s)"
        tail -n 12 "$work/step"
        return 1
    fi
    say "ok     $name ($((SECONDS - since)) s)"
}

nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,power.limit,power.draw,temperature.gpu --format=csv,noheader | tee -a "$log"
if [ -z "${MOK:-}" ]; then
    try configure 60 cmake -S . -B "$build" -G Ninja -DMOK_TESTS=OFF "-DMOK_CJSON_ROOT=${MOK_CJSON_ROOT:-}" || exit 1
    try build 300 cmake --build "$build" --target mok_tool || exit 1
    MOK=$build/cli/mok
fi

for shape in ${shapes//,/ }; do
    # shellcheck disable=SC2086
    try "$shape" 60 "$MOK" bench --backend cuda --shape "$shape" --tokens "$tokens" --repeat "$repeat" --warm-up "$warm_up" \
        --commit "$commit" --json "$work/$shape.json" ${BENCH_OPTIONS:-}
done

rm -f "$out/torch_nccl.json" # of an earlier run
if [ -z "${SKIP_TORCH:-}" ]; then
    gpus=$(nvidia-smi --list-gpus | wc -l)
    launcher=python3
    [ "$gpus" -gt 1 ] && launcher="python3 -m torch.distributed.run --standalone --nproc-per-node $gpus"
    # shellcheck disable=SC2086
    try torch_nccl 150 $launcher bench/peers/torch_nccl.py --shape "$shapes" --tokens "$tokens" --repeat "$repeat" --warm-up "$warm_up" \
        --commit "$commit" --json "$out/torch_nccl.json" ${TORCH_OPTIONS:-}
fi

python3 bench/layer_table.py --merge "$out/layer.json" --torch "$out/torch_nccl.json" "$work"/*.json > "$out/layer_table.txt" ||
    failed=$((failed + 1))
cat "$out/layer_table.txt"
say "time: $((SECONDS - begin)) s, $failed failed"
[ $failed -eq 0 ]
