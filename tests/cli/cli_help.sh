#!/bin/sh
# Help is what it is meant to be, and every option of the library's table stands in it. Usage: cli_help.sh MOK HELP_DIR
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
"$1" --help > "$work/mok.txt"
diff "$2/mok.txt" "$work/mok.txt" || failed=1
for command in run verify info bench trace; do
    "$1" $command --help > "$work/all"
    sed '/^group options (/,$d' "$work/all" > "$work/$command.txt"
    diff "$2/$command.txt" "$work/$command.txt" || { echo "mok $command --help differs"; failed=1; }
    # Each group option names its variable and its default.
    sed -n '/^group options (/,/^$/p' "$work/all" | grep -c -e '^  --[a-z-]* [^ ]* .*\[MOK_[A-Z_]*, default [^ ]*\]$' > "$work/count"
    grep -c -e '^  --' "$work/all" > "$work/listed"
    own=$(grep -c -e '^  --' "$work/$command.txt")
    if [ "$(cat "$work/count")" -lt 10 ] || [ "$(cat "$work/listed")" -ne "$((own + $(cat "$work/count")))" ]; then
        echo "mok $command --help: a group option is not as it should be"
        failed=1
    fi
    tail -n 1 "$work/all" | grep -q -e '^exit codes: 0 ok, 1 a result is wrong, 2 usage, 3 error, 77 not available here$' || failed=1
done
# The help of a command names only the peers that it takes.
for row in "run threads|mpi|nccl" "trace threads|mpi|nccl" "verify threads|mpi|external" "bench threads" \
    "info threads|mpi|nccl|external"; do
    "$1" "${row%% *}" --help > "$work/all"
    grep -q -F -e "  --peer ${row#* } " "$work/all" || { echo "mok ${row%% *} --help: --peer is not ${row#* }"; failed=1; }
done
# Without a command: the same list, to standard error, and code 2.
got=0
"$1" > "$work/out" 2> "$work/err" || got=$?
[ "$got" -eq 2 ] && [ ! -s "$work/out" ] && diff "$2/mok.txt" "$work/err" || failed=1
"$1" --version | grep -q -e '^mok [0-9]*\.[0-9]*\.[0-9]*$' || failed=1
exit $failed
