#!/bin/sh
# The counting of `make test`: what passes, fails, crashes, is skipped, and a CPU suite that ran nothing. Usage: summary.sh SOURCE_DIR
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
# expect WORDS CODE: the text on standard input as results of CTest must end in WORDS with exit code CODE.
expect() {
    { echo '<testsuite>'; cat; echo '</testsuite>'; } > "$work/results.xml"
    code=0
    line=$(awk -f "$1/scripts/summary.awk" "$work/results.xml" | tail -n 1) || true
    awk -f "$1/scripts/summary.awk" "$work/results.xml" > "$work/log" || code=$?
    if [ "$line" != "$2" ] || [ "$code" -ne "$3" ]; then
        echo "'$line' with exit code $code, expected '$2' with $3:"
        cat "$work/results.xml"
        failed=1
    fi
}
expect "$1" "3 passed, 0 failed, 1 skipped" 0 << 'XML'
<testcase name="test_a" status="run"><system-out>
[==========] 3 test(s) run.[  PASSED  ] 2 test(s).
[  SKIPPED ] 1 test(s), listed below:
[  SKIPPED ] one</system-out></testcase>
<testcase name="script" status="run"><system-out>fine</system-out></testcase>
XML
expect "$1" "4 passed, 2 failed, 0 skipped" 1 << 'XML'
<testcase name="test_a" status="fail"><system-out>
[  PASSED  ] 4 test(s).
[  FAILED  ] 2 test(s), listed below:
[  FAILED  ] one</system-out></testcase>
XML
expect "$1" "1 passed, 1 failed, 0 skipped" 1 << 'XML'
<testcase name="crash" status="fail"><failure message=""/><system-out>[ RUN      ] one</system-out></testcase>
<testcase name="script" status="run"></testcase>
XML
expect "$1" "1 passed, 0 failed, 1 skipped" 0 << 'XML'
<testcase name="gpu_cases" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/></testcase>
<testcase name="script" status="run"></testcase>
XML
expect "$1" "1 passed, 1 failed, 1 skipped" 1 << 'XML'
<testcase name="cases_threads" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/></testcase>
<testcase name="script" status="run"></testcase>
XML
expect "$1" "0 passed, 0 failed, 1 skipped" 1 << 'XML'
<testcase name="gpu" status="notrun"></testcase>
XML
expect "$1" "0 passed, 0 failed, 0 skipped" 1 < /dev/null
exit $failed
