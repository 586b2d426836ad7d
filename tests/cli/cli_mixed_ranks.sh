#!/bin/sh
# Ranks that were started with different command lines: all end soon, with one sentence that names what differs or which rank cannot begin,
# with the exit code of that and without MPI_Abort. Usage: cli_mixed_ranks.sh MOK DATA_DIR MPIEXEC...
# MPIEXEC: a command line that starts one process, to be continued with ':' for the next.
set -eu
mok=$1
data=$2
shift 2
CUDA_VISIBLE_DEVICES= # no machine has a GPU for this test
export CUDA_VISIBLE_DEVICES
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
files="--weights $data/layer.safetensors --input $data/io.safetensors --layer model.layers.2.mlp"
cpu="run --peer mpi $files --backend cpu"
launch=$*

# check CODE SENTENCE FIRST SECOND...: command lines of rank 0, 1, ...; words are split at blanks.
check() {
    expected=$1
    sentence=$2
    line="$launch $mok $3"
    flags=${launch#* } # what follows the launcher's name
    shift 3
    for other in "$@"; do
        line="$line : $flags $mok $other"
    done
    code=0
    # shellcheck disable=SC2086
    timeout 60 $line > "$work/out" 2> "$work/err" || code=$?
    said=$(grep -c -e '^mok' "$work/err" || true)
    wanted=1
    [ -n "$sentence" ] || wanted=0
    echo "$code: $(grep -m 1 -e '^mok' "$work/err" || true)"
    if [ "$code" -ne "$expected" ] || [ "$said" -ne "$wanted" ] || ! grep -q -e "$sentence" "$work/err" "$work/out" ||
        grep -q -i -e 'MPI_ABORT' -e MPI_ERR -e NBC_ "$work/err"; then
        echo "expected $expected: $sentence"
        echo "of: $line"
        cat "$work/err"
        failed=1
    fi
}

# What mpirun starts with different commands and settings.
check 2 '^mok run: rank 1: --ranks is 5, but mpirun has started 2 ' "$cpu" "$cpu --ranks 5"
check 2 '^mok run: --ranks is 5, but mpirun has started 2 ' "$cpu --ranks 5" "$cpu"
check 2 '^mok run: rank 1 was started as mok trace, but rank 0 as mok run' "$cpu" "trace --peer mpi --backend cpu --out $work/q.svg"
check 2 '^mok run: rank 1 was started as mok verify, but rank 0 as mok run' "$cpu" "verify --peer mpi --backend cpu"
check 2 '^mok verify: rank 1 was started as mok run, but rank 0 as mok verify' "verify --peer mpi --backend cpu" "$cpu"
check 2 '^mok run: rank 2 was started with another --no-oracle than rank 0' "$cpu" "$cpu" "$cpu --no-oracle"
check 2 '^mok run: rank 1 was started with another --layer than rank 0' "$cpu" "$cpu --layer model.layers.1.mlp" \
    "trace --peer mpi --out $work/q.svg"
check 2 '^mok trace: rank 1 was started with another --hidden than rank 0' "trace --peer mpi --backend cpu --out $work/q.svg" \
    "trace --peer mpi --backend cpu --out $work/q.svg --hidden 64"
check 2 '^mok verify: rank 1 was started with other arguments than rank 0' "verify --peer mpi --backend cpu" \
    "verify --peer mpi --backend cpu no-tokens-add"

# A rank that cannot begin: its own code.
check 77 '^mok run: .*\(GPU\|CUDA\).*(MOK_ERR_' "run --peer mpi $files --backend cuda" "$cpu"
check 77 '^mok run: rank 1: .*\(GPU\|CUDA\).*(MOK_ERR_' "$cpu" "$cpu --backend cuda"
check 2 "^mok run: option '--nonsense' is not known" "$cpu" "$cpu --nonsense"
# One that would have nothing to wait for.
check 2 '^mok run: rank 1 was started as mok verify, but rank 0 as mok run' "$cpu" "verify --peer mpi --list"
check 2 '^mok verify: rank 1 was started with another --list than rank 0' "verify --peer mpi --backend cpu" "verify --peer mpi --backend cpu --list"
check 0 '' "verify --peer mpi --list --ranks 3" "verify --peer mpi --list"
[ "$(grep -c -e '^three-ranks ' "$work/out")" -le 1 ] || { echo "two processes have printed the list"; failed=1; }

# What may differ: a report that only rank 0 writes, and a number of ranks that fits.
check 0 '' "$cpu --json $work/report.json" "$cpu --ranks 2"
[ -s "$work/report.json" ] || { echo "rank 0 has written no report"; failed=1; }
exit $failed
