#!/bin/sh
# A process that ends well without starting MPI: the other does not wait for ever. When mpirun sees the end behind the other's MPI_Init it ends
# the job itself; else the other has a limit, which is not the one for peers (10 minutes, when nothing is said). Usage: cli_silent_rank.sh MOK MPIEXEC...
# MPIEXEC: a command line that starts one process, to be continued with ':' for the next.
set -eu
mok=$1
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
launcher=$1
shift
begin=$(date +%s)
code=0
timeout 60 "$launcher" "$@" "$mok" verify --peer mpi --backend cpu : "$@" true > "$work/out" 2> "$work/err" || code=$?
echo "ended with $code after $(($(date +%s) - begin)) s: $(grep -m 1 -e '^mok' "$work/err" || true)"
if [ "$code" -eq 3 ] && grep -q -e '^mok: waited [0-9]* s in MPI_Init_thread: not all processes came$' "$work/err"; then
    exit 0
fi
if [ "$code" -eq 1 ] && grep -q -e 'exiting improperly' "$work/err"; then
    exit 0
fi
cat "$work/err"
exit 1
