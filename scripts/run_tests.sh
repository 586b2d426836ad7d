#!/bin/sh
# Runs the tests of a build and ends with one line "N passed, N failed, N skipped". Usage: run_tests.sh BUILD_DIR JOBS [EXCLUDED_TESTS]
set -u
here=$(dirname "$0")
build=$1 jobs=$2 excluded=${3:-}
results=$build/tests.xml
rm -f "$results"
ctest --test-dir "$build" -j "$jobs" ${excluded:+-E "$excluded"} --output-on-failure --no-tests=error --output-junit "$(pwd)/$results" \
    --test-output-size-passed 1000000 --test-output-size-failed 1000000
ctest_code=$?
if [ ! -s "$results" ]; then
    echo "ctest left no results (exit code $ctest_code)"
    echo "0 passed, 1 failed, 0 skipped"
    exit 1
fi
awk -f "$here/summary.awk" "$results"
summary_code=$?
[ "$ctest_code" -eq 0 ] && [ "$summary_code" -eq 0 ]
