# Counts what CTest ran, from its JUnit file: one case per cmocka test case, one per program of another kind.
# Prints the failed and the skipped, then "N passed, N failed, N skipped"; exit code 1 when something failed or nothing passed.
#   awk -f summary.awk results.xml
# A suite of the CPU backend that passed nothing counts as failed: every machine can run it, so one that ran nothing says nothing.

function attribute(text, name,    value) {
    if (!match(text, name "=\"[^\"]*\"")) {
        return ""
    }
    value = substr(text, RSTART, RLENGTH)
    sub(/^[^"]*"/, "", value)
    sub(/"$/, "", value)
    return value
}

function count_before(text, word) {
    # "[  PASSED  ] 12 test(s)." of one group; the number stands behind the bracket.
    sub(/.*\] */, "", text)
    return text + 0
}

function finish() {
    if (name == "") {
        return
    }
    if (status == "fail") {
        # A crash or a time-out leaves no summary of its own.
        if (case_failed == 0) {
            case_failed = 1
        }
        failures = failures "\n  failed: " name
    } else if (status != "run") {
        case_passed = 0
        case_skipped = case_skipped > 0 ? case_skipped : 1
    } else if (case_passed + case_failed + case_skipped == 0) {
        case_passed = 1
    } else if (case_failed > 0) {
        failures = failures "\n  failed: " name " (its exit code says otherwise)"
    }
    if (case_passed == 0 && case_failed == 0 && name ~ /^(test_cpu_|test_api_cpu|cases_|equalities|flight|golden_)/) {
        failures = failures "\n  failed: " name " ran nothing"
        case_failed = 1
    }
    if (case_skipped > 0) {
        skips = skips "\n  skipped: " name (case_skipped > 1 ? " (" case_skipped ")" : "")
    }
    passed += case_passed
    failed += case_failed
    skipped += case_skipped
    name = ""
}

/<testcase / {
    finish()
    name = attribute($0, "name")
    status = attribute($0, "status")
    case_passed = case_failed = case_skipped = 0
}
/\[  PASSED  \] [0-9]+ test\(s\)/ { case_passed += count_before($0) }
/\[  FAILED  \] [0-9]+ test\(s\)/ { case_failed += count_before($0) }
/\[  SKIPPED \] [0-9]+ test\(s\)/ { case_skipped += count_before($0) }
END {
    finish()
    printf "%s%s\n", skips, failures
    printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped
    exit failed > 0 || passed == 0
}
