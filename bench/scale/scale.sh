#!/bin/bash
# The layer on 1, 2, 4 and 8 GPUs of this machine with as many tokens on each, tests before and sweeps behind: what docs/performance.md says of scaling.
#   scale.sh [STEP...]      default: tests layer sweep move, all that follow
#     tests    tests/gpu/run.sh with a rank on each GPU: for the counts from 4 on, or the largest (5 to 10 minutes each)
#     layer    bench/layer.sh for each count of GPUs and tokens; a file a count: scale_h200x8.json, and so on
#     sweep    bench/sweep/sweep.sh of both passes on all GPUs
#     move     bench/move/move.sh: pull and push under skew, and completion over the number of sources
#     tables   only the tables, from the files that are there
# Environment
#   COUNTS="8 4 2 1"      numbers of GPUs, the largest first; default: of these all that the machine has
#   BESIDE=1              all counts but the first at the same time, each on GPUs of its own, where they are enough
#   TOKENS="8192 2048"    tokens of each GPU
#   SHAPES="A,B"          default: every shape of docs/performance.md that a count of GPUs has memory for
#   SKEWS="SHAPE:SKEW.."  skewed runs, each with its balanced one; default: those of bench/layer.sh with 8,192 tokens and two with 2,048; with SHAPES or
#                         on one GPU none
#   REPEAT, WARM_UP       of bench/layer.sh; default 30, 10
#   MOK=FILE              a mok that is built already; else it is built in BUILD (default /tmp/mok-gpu-build, which the tests use, too)
#   MOVE_BENCH, MOK_CJSON_ROOT, MOK_NCCL_ROOT, COMMIT    as in the scripts above
#   DOCS=FILE             puts the tables into this page (docs/performance.md), too
# Files go to $OUT, or to bench/results. Each step says what it took. What is done stays when a later step fails or is cut off.
set -u
cd "$(dirname "$0")/../.." || exit 1
. bench/gpus.sh
give_help bench/scale/scale.sh "$@"
for step in "$@"; do
    case $step in
    tests | layer | sweep | move | tables) ;;
    *) refuse "step '$step': must be tests, layer, sweep, move or tables" ;;
    esac
done
find_gpus
IFS=, read -r -a devices <<< "$visible"
num_gpus=${#devices[@]}
counts=()
for count in ${COUNTS:-8 4 2 1}; do
    if [ "$count" -le "$num_gpus" ]; then
        counts+=("$count")
    else
        echo "left out: $count GPUs, the machine has $num_gpus"
    fi
done
[ ${#counts[@]} -gt 0 ] || refuse "COUNTS is '${COUNTS:-}': the machine has $num_gpus GPUs"
largest=${counts[0]}
out=$(mkdir -p "${OUT:-bench/results}" && cd "${OUT:-bench/results}" && pwd) || exit 1
build=${BUILD:-/tmp/mok-gpu-build}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
commit=${COMMIT:-$(git describe --always --dirty --abbrev=40 --exclude='*' 2> /dev/null)}
begin=$SECONDS
failed=0

# FIRST COUNT: so many of the GPUs, as CUDA_VISIBLE_DEVICES.
some_gpus() {
    local IFS=,
    echo "${devices[*]:$1:$2}"
}

# Says what a step took, and counts its failure. Arguments: title, command.
timed() {
    local title=$1 since=$SECONDS code
    shift
    "$@"
    code=$?
    [ $code -ne 0 ] && failed=$((failed + 1))
    echo "### $title: $([ $code -eq 0 ] && echo ok || echo "FAILED, exit code $code"), $((SECONDS - since)) s"
}

# The same for what runs in the background: its exit code says whether it failed.
timed_apart() {
    failed=0
    timed "$@"
    exit "$failed"
}

need_mok() {
    [ -n "${MOK:-}" ] && return
    mkdir -p "$build"
    timed build cmake_build > "$work/build.log" 2>&1
    tail -n 1 "$work/build.log"
    export MOK=$build/cli/mok
    [ -x "$MOK" ] || { tail -n 20 "$work/build.log"; exit 1; }
}

cmake_build() {
    timeout 60 cmake -S . -B "$build" -G Ninja -DMOK_TESTS=OFF "-DMOK_CJSON_ROOT=${MOK_CJSON_ROOT:-}" && timeout 300 cmake --build "$build" --target mok_tool
}

# ---- tests -----------------------------------------------------------------------------------------------------------------------

tests_on() {
    CUDA_VISIBLE_DEVICES=$(some_gpus 0 "$1") timeout 590 sh tests/gpu/run.sh "$build" > "$out/tests_${gpu}x$1.log" 2>&1
    local code=$?
    grep -E '^(== .*[1-9][0-9]* failed|failed:|skip|time:|[0-9]+ passed)' "$out/tests_${gpu}x$1.log"
    return $code
}

# ---- the layer -------------------------------------------------------------------------------------------------------------------

# COUNT FIRST TOKENS: one run of layer.sh on the GPUs from FIRST on, merged into the file of the count.
layer_on() {
    local count=$1 first=$2 tokens=$3 part=$work/$1_$3 skews=" " options="--path fused"
    [ "$tokens" = 8192 ] || options="$options --no-stages"
    if [ -n "${SKEWS+given}" ]; then
        skews=$SKEWS
    elif [ "$count" -gt 1 ] && [ -z "${SHAPES:-}" ]; then
        skews="qwen3-30b:zipf qwen3-30b:hot"
        [ "$tokens" = 8192 ] && skews="$skews mixtral-8x7b:zipf mixtral-8x7b:hot kimi-k2-slice:zipf kimi-k2-slice:hot real64:real tiny-real:real"
    fi
    CUDA_VISIBLE_DEVICES=$(some_gpus "$first" "$count") OUT=$part NAME=layer TOKENS=$tokens SKEWS=$skews BENCH_OPTIONS=$options SKIP_TORCH=1 COMMIT=$commit \
        bash bench/layer.sh ${SHAPES:+"$SHAPES"} > "$work/${count}_$tokens.log" 2>&1
    local code=$?
    grep -E '^(FAILED|left out|time:)' "$work/${count}_$tokens.log" | sed "s/^/$count GPUs, $tokens tokens: /"
    grep -A 12 '^FAILED' "$work/${count}_$tokens.log" | head -n 40
    [ -s "$part/layer.json" ] && { python3 bench/scale/scale_table.py --add "$tokens" "$part/layer.json" --to "$out/scale_${gpu}x$count.json" || code=1; }
    return $code
}

# COUNT FIRST
all_tokens_on() {
    local tokens code=0
    rm -f "$out/scale_${gpu}x$1.json"
    for tokens in ${TOKENS:-8192 2048}; do
        layer_on "$1" "$2" "$tokens" || code=1
    done
    return $code
}

# The counts but the first fit beside each other when their sum is no more than there are GPUs.
layers() {
    local count first=0 sum=0
    timed "layer on $largest GPUs" all_tokens_on "$largest" 0
    for count in "${counts[@]:1}"; do
        sum=$((sum + count))
    done
    for count in "${counts[@]:1}"; do
        if [ -n "${BESIDE:-}" ] && [ $sum -le "$num_gpus" ]; then
            timed_apart "layer on $count GPUs from $first on, beside others" all_tokens_on "$count" $first &
            first=$((first + count))
        else
            timed "layer on $count GPUs" all_tokens_on "$count" 0
        fi
    done
    local apart
    for apart in $(jobs -p); do
        wait "$apart" || failed=$((failed + 1))
    done
}

# ---- sweeps, rows on their way, tables -------------------------------------------------------------------------------------------

sweep_of() {
    CUDA_VISIBLE_DEVICES=$(some_gpus 0 "$largest") PASS=$1 OUT=$out NAME=sweep_$1_${gpu}x$largest COMMIT=$commit \
        bash bench/sweep/sweep.sh ${SHAPES:+"$SHAPES"} > "$work/sweep.log" 2>&1
    local code=$?
    [ $code -eq 0 ] || tail -n 20 "$work/sweep.log"
    return $code
}

move_rows() {
    CUDA_VISIBLE_DEVICES=$(some_gpus 0 "$largest") OUT=$out NAME=move_${gpu}x$largest COMMIT=$commit bash bench/move/move.sh
}

tables() {
    local files=() count
    for count in 1 2 4 8; do
        [ -s "$out/scale_${gpu}x$count.json" ] && files+=("$out/scale_${gpu}x$count.json")
    done
    [ ${#files[@]} -gt 0 ] || return 0
    local pass
    for pass in forward backward; do
        [ -s "$out/sweep_${pass}_${gpu}x$largest.json" ] && files+=(--sweep "$out/sweep_${pass}_${gpu}x$largest.json")
    done
    python3 bench/scale/scale_table.py ${DOCS:+--docs "$DOCS"} "${files[@]}" > "$out/scale_$gpu.md"
    local code=$?
    cat "$out/scale_$gpu.md"
    return $code
}

nvidia-smi --query-gpu=index,name,driver_version,clocks.sm,clocks.mem,power.limit,power.draw,temperature.gpu --format=csv,noheader
for step in "${@:-tests layer sweep move}"; do
    for one in $step; do # the default is one word
        case $one in
        tests)
            for count in "${counts[@]}"; do
                if [ "$count" -ge 4 ] || [ "$count" = "$largest" ]; then
                    timed "tests on $count GPUs" tests_on "$count"
                fi
            done
            ;;
        layer) need_mok && layers ;;
        sweep) need_mok && timed "sweep, forward" sweep_of forward && timed "sweep, backward" sweep_of backward ;;
        move) timed "move on $largest GPUs" move_rows ;;
        tables) ;;
        esac
    done
done
timed tables tables
echo "time: $((SECONDS - begin)) s, $failed failed"
[ $failed -eq 0 ]
