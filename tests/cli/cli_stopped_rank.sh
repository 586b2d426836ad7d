#!/bin/sh
# A rank that stops without a word ends the job of all, with a sentence that names it and the code of an error, whether it stops before the ranks
# have met (while files are loaded) or while they share memory. Usage: cli_stopped_rank.sh MOK DATA_DIR MPIEXEC...
# MPIEXEC: a command line that starts three processes.
set -eu
mok=$1
data=$2
shift 2
work=$(mktemp -d)
job=
stopped=
clean_up() {
    for pid in $stopped; do
        kill -KILL "$pid" 2> "$work/ignored" || true
    done
    for pid in $job; do
        kill -TERM "$pid" 2> "$work/ignored" || true
    done
    rm -rf "$work"
}
trap clean_up EXIT
failed=0

rank_of() {
    tr '\0' '\n' < "/proc/$1/environ" | sed -n 's/^\(OMPI_COMM_WORLD\|PMI\)_RANK=//p' | head -n 1
}

# stop MPIEXEC...: stops one rank as soon as $pattern stands among what it has mapped or opened.
stop() {
    timeout 60 "$@" "$mok" run --weights "$data/layer.safetensors" --input "$data/io.safetensors" --backend cpu --peer mpi \
        --peer-timeout 1500 --local-timeout 1500 > "$work/out" 2> "$work/err" &
    job=$!
    stopped=
    tries=0
    while [ -z "$stopped" ] && [ "$tries" -lt 3000 ]; do
        for pid in $(pgrep -x -f "$mok run .* --peer-timeout 1500 --local-timeout 1500"); do # nobody else's: other tests run beside this one
            if [ "$(cat "/proc/$pid/comm" 2> "$work/ignored")" = mok ] && grep -q -e "$pattern" "/proc/$pid/maps" 2> "$work/ignored"; then
                kill -STOP "$pid" && stopped=$pid && rank=$(rank_of "$pid") && break
            fi
        done
        tries=$((tries + 1))
        sleep 0.01
    done
    [ -n "$stopped" ] && [ -n "$rank" ] || { echo "no rank was seen with $pattern"; failed=1; return; }
    begin=$(date +%s)
    code=0
    wait "$job" || code=$?
    job=
    took=$(($(date +%s) - begin))
    echo "rank $rank stopped with $pattern: ended with $code after $took s: $(grep -m 1 -e '^mok.*waited' "$work/err" || true)"
    # 124: the time limit of this test has ended it.
    if [ "$code" -eq 0 ] || [ "$code" -eq 124 ] || [ "$took" -gt 25 ] || ! grep -q -e "^mok.* waited [0-9]* ms .*for rank $rank\b" "$work/err"; then
        cat "$work/err"
        failed=1
    fi
    # The limit that ends the job is told with the setting that it comes from.
    grep -q -e "^mok.* waited 9500 ms (peer-timeout, 1500, and 8000 more) for rank $rank to " "$work/err" ||
        { echo "the limit of the wait is not explained:"; cat "$work/err"; failed=1; }
    kill -KILL "$stopped" 2> "$work/ignored" || true
    stopped=
}
pattern=layer.safetensors
stop "$@"
# Here it is the library that waits first, and for less: its own sentence is the cause, and comes first.
pattern=/dev/shm/mok-
stop "$@"
grep -e '^mok: .*\(MOK_ERR_TIMEOUT\|waited 9500 ms\)' "$work/err" | head -n 1 | grep -q -e "rank $rank\b.*(MOK_ERR_TIMEOUT)\$" ||
    { echo "the library's own time-out is not told first:"; cat "$work/err"; failed=1; }
exit $failed
