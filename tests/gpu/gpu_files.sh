#!/bin/sh
# Layers from files on the GPUs, through the tool: the golden layers of tests/golden and the trained layer of data/, staged on 1, 2 and 4 ranks, fused
# on 2. Several at a time, because each mostly waits for CUDA to start. Usage: gpu_files.sh MOK [WORK_DIR]
set -u
source_dir=$(cd "$(dirname "$0")/../.." && pwd)
mok=$1
work=${2:-$(mktemp -d)}
mkdir -p "$work"
at_once=8

# One line "layer tokens top_k ranks path" a run; the trained layer has no tokens here.
jobs() {
    for how in "1 staged" "2 staged" "4 staged" "2 fused"; do
        sed -n "s|^\([a-z][^ ]*\) \([^ ]*\) \(.*\)|$source_dir/tests/golden/\1/\2.safetensors \3 $how|p" "$source_dir/tests/golden/layers.txt"
        echo "$source_dir/data/qwen3moe-code/layer.safetensors - - $how"
    done
}

# shellcheck disable=SC2016 # the inner shell's words
jobs | xargs -P $at_once -L 1 sh -c '
source_dir=$0 mok=$1 work=$2 layer=$3 tokens=$4 top_k=$5 ranks=$6 path=$7
name=$(basename "$(dirname "$layer")")_$(basename "$layer" .safetensors)_${ranks}_$path
set -- --backend cuda --ranks "$ranks" --path "$path"
if [ "$tokens" = - ]; then
    timeout -k 5 60 "$mok" run --weights "$layer" --layer model.layers.2.mlp --input "$(dirname "$layer")/io.safetensors" "$@" > "$work/$name.log" 2>&1
else
    timeout -k 5 60 sh "$source_dir/tests/golden/golden_layer.sh" "$mok" "$layer" "$tokens" "$top_k" "$@" > "$work/$name.log" 2>&1
fi
code=$?
line="$ranks ranks, $path: ${layer#"$source_dir"/}"
if [ $code -eq 0 ]; then
    echo "ok     $line"
else
    echo "FAILED $line: exit code $code; $(tail -n 3 "$work/$name.log" | tr "\n" " ")"
fi' "$source_dir" "$mok" "$work" > "$work/results"

cat "$work/results"
passed=$(grep -c '^ok' "$work/results")
failed=$(($(jobs | wc -l) - passed)) # one that said nothing failed, too
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
