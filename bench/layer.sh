#!/bin/bash
# The layer on this machine's GPUs: `mok bench` on a list of shapes and skews, then the PyTorch + NCCL baseline on the same; the tables last.
#   layer.sh [SHAPES]     names joined by commas; default: every shape of docs/performance.md that this machine has memory for
# Environment
#   MOK=FILE              a mok that is built already; else it is built in BUILD (default /tmp/mok-gpu-build, as in scale.sh) with cmake, ninja, gcc and nvcc
#   MOK_CJSON_ROOT=DIR    where include/cjson/cJSON.h and lib/libcjson.so are, when not in the system; CMAKE_PREFIX_PATH is heeded, too
#   SKEWS="SHAPE:SKEW.."  skewed runs, each followed by its balanced one; default below, or none with SHAPES; SKEWS=" " for none
#   BENCH_OPTIONS="..."   more options of mok bench; default "--path fused --zero-copy": both paths, forward also with x handed in zero-copy
#   TORCH_OPTIONS="..."   the same for the baseline; SKIP_TORCH=1 leaves it out
#   TOKENS, REPEAT, WARM_UP   of both; default 8192, 30, 10
#   COMMIT=TEXT           for the JSON, where git cannot be asked
#   NAME=TEXT             files are NAME.json, NAME_torch_nccl.json; default layer_, the GPU, how many: layer_h200x2
# The files, NAME.log and NAME.md (the tables) go to $OUT, or to bench/results.
set -u
export NCCL_NVLS_ENABLE="${NCCL_NVLS_ENABLE:-0}" # no multicast over NVLink, as in peer nccl; all-to-all has no use for it
cd "$(dirname "$0")/.." || exit 1
. bench/gpus.sh
give_help bench/layer.sh "$@"
find_gpus
out=${OUT:-bench/results}
build=${BUILD:-/tmp/mok-gpu-build}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out"
name=${NAME:-layer_${gpu}x$gpus}
log=$out/$name.log
: > "$log"
begin=$SECONDS
failed=0
tokens=${TOKENS:-8192} repeat=${REPEAT:-30} warm_up=${WARM_UP:-10}
commit=${COMMIT:-$(git describe --always --dirty --abbrev=40 --exclude='*' 2> /dev/null)}
options=${BENCH_OPTIONS---path fused --zero-copy}

say() { echo "$*" | tee -a "$log"; }

# Runs a command with a limit in seconds; its output goes to the log, the end of it also here when it fails.
try() {
    title=$1 limit=$2 since=$SECONDS
    shift 2
    timeout -k 5 "$limit" "$@" > "$work/step" 2>&1
    code=$?
    { echo "== $title: $*"; cat "$work/step"; } >> "$log"
    if [ $code -ne 0 ]; then
        failed=$((failed + 1))
        say "FAILED $title: exit code $code ($((SECONDS - since)) s)"
        tail -n 12 "$work/step"
        return 1
    fi
    say "ok     $title ($((SECONDS - since)) s)"
}

# Whether weights (bf16) and gradients (fp32, and once more in bf16 in the baseline) of a full shape fit, with 25 GB for all else.
fits() {
    case $1 in # GB of all experts at 8 bytes a value
    kimi-k2) need=135 ;;
    glm-5.2) need=77 ;;
    qwen3.5) need=52 ;;
    deepseek-v4-pro) need=203 ;;
    *) return 0 ;;
    esac
    memory=$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits | sort -n | head -n 1)
    [ $((need / gpus + 25)) -le $((memory * 1049 / 1000000)) ] || { say "left out: $1 needs more memory than $gpus GPUs have"; false; }
}

# NAME TOKENS SKEW TITLE: one run of mok bench. real64 is qwen3-30b with 64 experts, for the trained routes.
bench() {
    case $1 in
    real64) set -- "$2" "$3" "$4" --experts 64 --top-k 8 --hidden 2048 --intermediate 768 ;;
    *) set -- "$2" "$3" "$4" --shape "$1" ;;
    esac
    count=$1 skew=$2 title=$3
    shift 3
    # shellcheck disable=SC2086
    try "$title" 90 "$MOK" bench --backend cuda "$@" --tokens "$count" --skew "$skew" --repeat "$repeat" --warm-up "$warm_up" --commit "$commit" \
        --json "$work/$title.json" $options ${more:-}
}

nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,power.limit,power.draw,temperature.gpu --format=csv,noheader | tee -a "$log"
shapes=${1:-}
if [ -z "$shapes" ]; then
    for shape in qwen3-30b mixtral-8x7b kimi-k2-slice glm-5.2-slice qwen3.5-slice deepseek-v4-pro-slice kimi-k2 glm-5.2 qwen3.5 deepseek-v4-pro; do
        fits $shape && shapes=$shapes${shapes:+,}$shape
    done
    skews=${SKEWS-qwen3-30b:zipf qwen3-30b:hot mixtral-8x7b:zipf mixtral-8x7b:hot kimi-k2-slice:zipf kimi-k2-slice:hot real64:real tiny-real:real}
else
    skews=${SKEWS:-}
fi
if [ -z "${MOK:-}" ]; then
    mkdir -p "$build"
    try configure 60 cmake -S . -B "$build" -G Ninja -DMOK_TESTS=OFF "-DMOK_CJSON_ROOT=${MOK_CJSON_ROOT:-}" || exit 1
    try build 300 cmake --build "$build" --target mok_tool || exit 1
    MOK=$build/cli/mok
fi

for shape in ${shapes//,/ }; do
    bench "$shape" "$tokens" balanced "$shape"
done
for pair in $skews; do
    shape=${pair%%:*} skew=${pair##*:} more=--no-stages
    if bench "$shape" "$tokens" "$skew" "$shape@$skew"; then
        balanced=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["shape"]["balanced_tokens"])' "$work/$shape@$skew.json")
        bench "$shape" "$balanced" balanced "$shape@$skew-balanced"
    fi
done

rm -f "$out/${name}_torch_nccl.json" # of an earlier run
if [ -z "${SKIP_TORCH:-}" ]; then
    launcher=python3
    [ "$gpus" -gt 1 ] && launcher="python3 -m torch.distributed.run --standalone --nproc-per-node $gpus"
    # shellcheck disable=SC2086
    try torch_nccl 300 $launcher bench/peers/torch_nccl.py --shape "$shapes" --tokens "$tokens" --repeat "$repeat" --warm-up "$warm_up" \
        --commit "$commit" --json "$out/${name}_torch_nccl.json" ${TORCH_OPTIONS:-}
fi

results=()
for title in ${shapes//,/ }; do
    results+=("$work/$title.json")
done
for pair in $skews; do
    results+=("$work/${pair/:/@}.json" "$work/${pair/:/@}-balanced.json")
done
python3 bench/layer_table.py --merge "$out/$name.json" --torch "$out/${name}_torch_nccl.json" "${results[@]}" > "$out/$name.md" || failed=$((failed + 1))
cat "$out/$name.md"
say "time: $((SECONDS - begin)) s, $failed failed"
[ $failed -eq 0 ]
