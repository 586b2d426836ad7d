#!/bin/sh
# Runs every fuzz target of a build for some seconds, from tests/fuzz/corpus/<name> where there is one, and ends with one line
# "N passed, N failed, N skipped". Usage: run_fuzz.sh BUILD_DIR SECONDS
set -u
build=$1 seconds=$2
passed=0 failed=0
for target in "$build"/tests/fuzz/fuzz_*; do
    [ -f "$target" ] && [ -x "$target" ] || continue
    name=$(basename "$target")
    work=$(mktemp -d)
    seeds=
    [ -d "tests/fuzz/corpus/$name" ] && seeds=tests/fuzz/corpus/$name
    # Findings are kept beside the build; new inputs go to a folder that is thrown away.
    if timeout $((seconds + 60)) "$target" -max_total_time="$seconds" -timeout=10 -artifact_prefix="$build/$name-" -print_final_stats=1 \
        "$work" $seeds > "$work.log" 2>&1 && runs=$(awk '/stat::number_of_executed_units/ { print $2 }' "$work.log") && [ "${runs:-0}" -gt 0 ]; then
        echo "$name: $runs runs in ${seconds}s"
        passed=$((passed + 1))
    else
        echo "$name: FAILED"
        tail -60 "$work.log"
        failed=$((failed + 1))
    fi
    rm -rf "$work" "$work.log"
done
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
