#!/bin/sh
# What docs/performance.md shows of committed files is what the tools make of them: the layer's tables, the sweeps' tables and pictures. A pass without a
# committed sweep says so. Usage: page_tables.sh SOURCE_DIR
set -eu
cd "$1"
command -v python3 > /dev/null || { echo "no python3"; exit 77; }
results=bench/results
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0 compared=0
same() { # what, file, file as made
    compared=$((compared + 1))
    cmp -s "$2" "$3" || { echo "$1: $2 is not what the tool makes of the committed files:"; diff "$2" "$3" | head -n 10; failed=1; }
}
mkdir "$work/docs"
cp docs/performance.md "$work/docs"
python3 bench/layer_table.py --torch $results/layer_h200x2_torch_nccl.json --docs "$work/docs/performance.md" $results/layer_h200x2.json
same "the layer's tables" docs/performance.md "$work/docs/performance.md"
for pass in forward backward; do
    sweep=$results/sweep_${pass}_h200x2.json picture=docs/sweeps_$pass.svg
    if [ ! -e "$sweep" ]; then
        compared=$((compared + 1))
        begin="<!-- sweep table, $pass: written" end="<!-- sweep table, $pass: end"
        text=$(awk -v begin="$begin" -v end="$end" 'index($0, end) == 1 { inside = 0 } inside { print } index($0, begin) == 1 { inside = 1 }' docs/performance.md)
        [ "$text" = "Not run yet." ] && [ ! -e "$picture" ] || { echo "$pass: a table or picture of a sweep, and no $sweep"; failed=1; }
        continue
    fi
    python3 bench/sweep/sweep_plot.py --docs "$work/docs/performance.md" --out "$work/$picture" "$sweep"
    same "the table of the $pass sweep" docs/performance.md "$work/docs/performance.md"
    same "the picture of the $pass sweep" "$picture" "$work/$picture"
done
echo "$compared compared"
[ "$compared" -gt 0 ] && exit $failed
