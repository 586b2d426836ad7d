#!/bin/sh
# The main job of the project, mok run on the trained layer over four ranks, and what its JSON says.
# Usage: cli_run.sh MOK DATA_DIR [MPIEXEC...]
# With MPIEXEC (a command line that starts four processes) every rank is a process.
set -eu
mok=$1
data=$2
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

check() { # check NAME CONDITION...
    name=$1
    shift
    "$@" || { echo "wrong: $name"; failed=1; }
}
# Values of a key, one a line, from JSON with one key a line.
values() { sed -n "s/^[[:space:]]*\"$1\":[[:space:]]*\(.*[^,]\),\{0,1\}\$/\1/p" "$2"; }
sum() { values "$1" "$2" | awk '{ total += $1 } END { print total + 0 }'; }

peer=threads
ranks="--ranks 4"
if [ $# -gt 0 ]; then
    peer=mpi
    ranks=
fi
# shellcheck disable=SC2086
"$@" "$mok" run --weights "$data/layer.safetensors" --layer model.layers.2.mlp --input "$data/io.safetensors" \
    --backend cpu --peer $peer $ranks --json "$work/report.json" --output "$work/y.safetensors" > "$work/table"
json="$work/report.json"
check "result in JSON" [ "$(values result "$json")" = '"ok"' ]
check "result in the table" [ "$(tail -n 1 "$work/table")" = "result: ok" ]
norm="2^-[0-9.]* of the row's norm (bound 2^-6)"
ulp='[0-9.]* bf16 ulp (bound 4)'
check "worst row error in the table" \
    grep -q -e "^worst row error: $norm and $ulp at token [0-9]* of rank [0-3], against the stored output\$" "$work/table"
check "peer" [ "$(values peer "$json")" = "\"$peer\"" ]
check "number of ranks" [ "$(values num_ranks "$json")" = 4 ]
# The split is uneven, and one rank has no tokens.
check "tokens of the ranks" [ "$(values tokens "$json" | tr '\n' ' ')" = "2048 256 0 512 1280 " ]
check "rows of all ranks" [ "$(sum rows "$json")" = 16384 ]
check "experts of all ranks" [ "$(values experts "$json" | tr '\n' ' ')" = "64 16 16 16 16 " ]
check "experts without rows" [ "$(sum experts_without_rows "$json")" -ge 1 ]
check "bad ids" [ "$(sum bad_ids "$json")" = 0 ]
check "failures" [ "$(sum failed "$json")" = 0 ]
check "ids, weights and output are compared with the stored ones" [ "$(grep -c -e '"name":.*stored' "$json")" = 3 ]
check "rows compared with the stored output" grep -q -e '^y rows, stored output  *2048  *0  *0 ' "$work/table"
for stage in schedule pull gate+up down push sum "dgrad down" "dgrad gate+up" wgrad "wait rows pulled"; do
    check "stage $stage" grep -q -e "\"name\":[[:space:]]*\"$stage\"" "$json"
done
for name in "y l2" "dx l2" dw dgate dup ddown; do
    check "check $name" grep -q -e "\"name\":[[:space:]]*\"$name\"" "$json"
done
# y is bf16: 8 bytes of length, a header, then 2048 rows of 256 twice, ids, weights and their gradients.
bytes=$(wc -c < "$work/y.safetensors")
check "size of the output file" [ "$bytes" -gt $((2 * 2048 * 256 * 2 + 3 * 2048 * 8 * 4)) ]
[ "$failed" -eq 0 ] || cat "$work/table"
exit $failed
