#!/bin/sh
# Help is what it is meant to be, and every option of the library's table stands in it. Usage: cli_help.sh MOK HELP_DIR
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
"$1" --help > "$work/mok.txt"
diff "$2/mok.txt" "$work/mok.txt" || failed=1
"$1" help > "$work/help"
diff "$2/mok.txt" "$work/help" || failed=1
# Of an option that is given twice the last counts, as the list says.
"$1" info --experts 8 --top-k 2 --hidden 64 --intermediate 32 --tokens 100 --saved 3 --saved 1 --backend cpu --json - > "$work/twice"
"$1" info --experts 8 --top-k 2 --hidden 64 --intermediate 32 --tokens 100 --saved 1 --backend cpu --json - > "$work/once"
cmp "$work/once" "$work/twice" || { echo "the last of two --saved does not count"; failed=1; }
for command in run verify info bench trace; do
    "$1" $command --help > "$work/all"
    sed '/^group options (/,$d' "$work/all" > "$work/$command.txt"
    diff "$2/$command.txt" "$work/$command.txt" || { echo "mok $command --help differs"; failed=1; }
    # Each group option names its variable and its default.
    sed -n '/^group options (/,/^$/p' "$work/all" | sed -n 's/^  --\([a-z-]*\) [^ ]* .*\[MOK_[A-Z_]*, default [^ ]*\]$/\1/p' > "$work/$command.group"
    listed=$(grep -c -e '^  --' "$work/all")
    own=$(grep -c -e '^  --' "$work/$command.txt")
    if [ "$listed" -ne $((own + $(wc -l < "$work/$command.group"))) ]; then
        echo "mok $command --help: a group option is not as it should be"
        failed=1
    fi
    tail -n 1 "$work/all" | grep -q -e '^exit codes: 0 ok, 1 a result is wrong, 2 usage, 3 error, 77 not available here$' || failed=1
done
# What a command does not list it refuses, and says why; what it lists it reads.
cat "$work"/*.group | sort -u > "$work/group"
[ "$(wc -l < "$work/group")" -ge 14 ] || { echo "group options are missing"; failed=1; }
while read -r name; do
    for command in run verify info bench trace; do
        got=0
        "$1" $command --"$name" 'x!' > /dev/null 2> "$work/err" || got=$?
        said=$(head -n 1 "$work/err")
        if grep -q -x -e "$name" "$work/$command.group"; then
            expected="mok $command: option --$name is 'x!': must be *"
        else
            expected="mok $command: option --$name has no effect here: *"
        fi
        # shellcheck disable=SC2254
        case $said in
        $expected) [ "$got" -eq 2 ] || failed=1 ;;
        *) echo "mok $command --$name: '$said', expected '$expected'"; failed=1 ;;
        esac
    done
done < "$work/group"
for row in "run 13" "verify 4" "info 11" "bench 13" "trace 13"; do
    [ "$(wc -l < "$work/${row%% *}.group")" -eq "${row#* }" ] || { echo "mok ${row%% *} --help: not ${row#* } group options"; failed=1; }
done
# The help of a command names only the peers that it takes.
for row in "run threads|mpi|nccl" "trace threads|mpi|nccl" "verify threads|mpi|external" "bench threads"; do
    "$1" "${row%% *}" --help > "$work/all"
    grep -q -F -e "  --peer ${row#* } " "$work/all" || { echo "mok ${row%% *} --help: --peer is not ${row#* }"; failed=1; }
done
# The default of --peer-timeout is the one that the command takes: verify has its own, which its first lines name, too.
for row in "run 600000" "trace 600000" "bench 600000" "verify 60000"; do
    "$1" "${row%% *}" --help > "$work/all"
    grep -q -e "^  --peer-timeout .* \[MOK_PEER_TIMEOUT, default ${row#* }\]\$" "$work/all" ||
        { echo "mok ${row%% *} --help: the default of --peer-timeout is not ${row#* }"; failed=1; }
done
# Under mpirun: --peer, for those that take one for processes.
for command in run trace verify bench; do
    "$1" $command --help > "$work/all"
    said='^Under mpirun --peer must be given: '
    [ $command != bench ] || said='^Not for mpirun: all ranks are threads of one process\.$'
    grep -q -e "$said" "$work/all" || { echo "mok $command --help: not '$said'"; failed=1; }
done
# Without a command: the same list, to standard error, and code 2.
got=0
"$1" > "$work/out" 2> "$work/err" || got=$?
[ "$got" -eq 2 ] && [ ! -s "$work/out" ] && diff "$2/mok.txt" "$work/err" || failed=1
"$1" --version | grep -q -e '^mok [0-9]*\.[0-9]*\.[0-9]*$' || failed=1
exit $failed
