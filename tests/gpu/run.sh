#!/bin/sh
# Builds the library and everything that needs a GPU on a GPU machine, and runs it. Prints "N passed, N failed, N skipped" last; exit code 0 when
# nothing failed and something passed.
#
# Usage: run.sh [BUILD_DIR]
# Needs cmake, ninja, gcc and nvcc. What else is there is used: OpenBLAS, cJSON, MPI, NCCL (MOK_NCCL_ROOT, or Python's package), compute-sanitizer.
set -u
source_dir=$(cd "$(dirname "$0")/../.." && pwd)
build_dir=${1:-/tmp/mok-gpu-build}
begin=$(date +%s)
passed=0
failed=0
skipped=0
failures=""

note() {
    failed=$((failed + 1))
    failures="$failures\n  $1"
}

skip() {
    skipped=$((skipped + 1))
    echo "skip   $1"
}

# Runs one program that ends with "N passed, N failed, N skipped". Arguments: name, limit in seconds, command.
run() {
    name=$1
    limit=$2
    shift 2
    since=$(date +%s)
    echo "== $name"
    timeout -k 5 "$limit" "$@" > "$build_dir/$name.log" 2>&1
    code=$?
    line=$(grep -E '^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' "$build_dir/$name.log" | tail -n 1)
    grep -E '^(FAILED|skip|    )' "$build_dir/$name.log" | head -n 40
    if [ -z "$line" ]; then
        note "$name: exit code $code and no result line"
        tail -n 15 "$build_dir/$name.log"
    else
        passed=$((passed + $(echo "$line" | cut -d' ' -f1)))
        failed=$((failed + $(echo "$line" | cut -d' ' -f3)))
        skipped=$((skipped + $(echo "$line" | cut -d' ' -f5)))
        case $line in *" 0 failed"*) ;; *) failures="$failures\n  $name: $line" ;; esac
        if [ $code -ne 0 ] && [ $code -ne 1 ] && [ $code -ne 77 ]; then
            note "$name: exit code $code"
        fi
    fi
    echo "   ${line:-no result} ($(($(date +%s) - since)) s)"
}

# Runs a command that must succeed, and counts as one. Arguments: name, limit in seconds, command.
must() {
    name=$1
    limit=$2
    shift 2
    since=$(date +%s)
    if timeout -k 5 "$limit" "$@" > "$build_dir/$name.log" 2>&1; then
        passed=$((passed + 1))
        echo "ok     $name ($(($(date +%s) - since)) s)"
    else
        note "$name: exit code $?"
        echo "FAILED $name ($(($(date +%s) - since)) s)"
        tail -n 25 "$build_dir/$name.log"
    fi
}

finish() {
    [ -n "$failures" ] && printf 'failures:%b\n' "$failures"
    echo "time: $(($(date +%s) - begin)) s"
    echo "$passed passed, $failed failed, $skipped skipped"
    [ $failed -eq 0 ] && [ $passed -gt 0 ]
    exit $?
}

if [ -z "${MOK_NCCL_ROOT:-}" ] && command -v python3 > /dev/null; then
    MOK_NCCL_ROOT=$(python3 -c 'import nvidia.nccl as n; print(list(n.__path__)[0])' 2> /dev/null)
fi
mkdir -p "$build_dir"
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
must configure 60 cmake -S "$source_dir" -B "$build_dir" -G Ninja -DMOK_TESTS=OFF -DMOK_GPU_TESTS=ON "-DMOK_NCCL_ROOT=${MOK_NCCL_ROOT:-}"
[ $failed -eq 0 ] || finish
grep -h -e 'libmok' "$build_dir/configure.log"
must build 300 cmake --build "$build_dir"
[ $failed -eq 0 ] || finish

bin=$build_dir/tests/gpu
run gpu_schedule 60 "$bin/gpu_schedule"
run gpu_cases 150 "$bin/gpu_cases" --slow
run gpu_equal 120 "$bin/gpu_equal"
run gpu_graph 120 "$bin/gpu_graph"
run gpu_faults 90 "$bin/gpu_faults"
run gpu_life 120 "$bin/gpu_life"
run gpu_nccl 120 "$bin/gpu_nccl"

# racecheck: one rank, because it patches kernels at their first launch, which waits for a rank that waits.
if command -v compute-sanitizer > /dev/null; then
    for name in all-different tiny-ring-bf16 gpt-oss bad-ids; do
        run "memcheck_$name" 60 compute-sanitizer --tool memcheck --error-exitcode 9 "$bin/gpu_cases" $name
    done
    for name in bad-ids-one-rank counts-one-rank one-expert-bf16; do
        run "racecheck_$name" 60 compute-sanitizer --tool racecheck --error-exitcode 9 "$bin/gpu_cases" $name
    done
else
    skip "memcheck and racecheck: no compute-sanitizer"
fi
[ -x "$build_dir/cli/mok" ] || skip "the command-line tool and the golden layers: no cJSON on this machine"
finish
