#!/bin/sh
# Ranks that fail, and ranks that are told of it: what the tool prints is one sentence with one beginning and its status at the end, whoever of them
# speaks. A limit of 1 ms makes them fail, now here, now there. Usage: cli_sentences.sh MOK DATA_DIR
set -eu
mok=$1
data=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
files="--weights $data/layer.safetensors --input $data/io.safetensors --layer model.layers.2.mlp"
cases="one-expert-add-bf16 no-tokens-add idle-rank empty-source none-routed-add"
: > "$work/run"
: > "$work/verify"
lines() { grep -c . "$1" || true; }
turns=0
while [ "$(lines "$work/run")" -lt 5 ] || [ "$(lines "$work/verify")" -lt 5 ]; do
    turns=$((turns + 1))
    [ "$turns" -le 100 ] || { echo "hardly any rank has failed: nothing is shown"; exit 1; }
    # shellcheck disable=SC2086
    "$mok" run $files --backend cpu --ranks 16 --peer-timeout 1 --no-oracle > "$work/out" 2> "$work/err" || true
    sed -n 's/^mok run: \(.*MOK_ERR_TIMEOUT.*\)/\1/p' "$work/err" >> "$work/run"
    for peer in threads external; do
        # shellcheck disable=SC2086
        "$mok" verify --backend cpu --peer $peer --peer-timeout 1 $cases > "$work/out" 2> "$work/err" || true
        sed -n 's/^     \(.*MOK_ERR_TIMEOUT.*\)/\1/p' "$work/out" >> "$work/verify"
    done
done
sort -u "$work/run" "$work/verify" > "$work/said"
head -n 20 "$work/said"
failed=0
! grep -v -e '^rank [0-9].* (MOK_ERR_TIMEOUT)$' "$work/said" || { echo "no beginning or no end, above"; failed=1; }
! grep -e '^rank [0-9]*: rank' -e '^rank [0-9]*: MOK_ERR' "$work/said" || { echo "two beginnings, above"; failed=1; }
exit $failed
