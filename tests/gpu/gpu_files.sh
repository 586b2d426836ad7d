#!/bin/sh
# Layers from files on the GPUs, through the tool's own code: the golden layers of tests/golden and the trained layer of data/, on 1, 2 and 4 ranks, staged
# and fused; with eight GPUs also on 8. Usage: gpu_files.sh GPU_FILES [WORK_DIR]
set -u
source_dir=$(cd "$(dirname "$0")/../.." && pwd)
program=$1
work=${2:-$(mktemp -d)}
mkdir -p "$work"
rm -f "$work"/*.table "$work"/*.code

gpus=$(echo "${CUDA_VISIBLE_DEVICES:-$(nvidia-smi --query-gpu=index --format=csv,noheader | paste -sd,)}" | tr , '\n' | wc -l)
counts="1 2 4"
[ "$gpus" -ge 8 ] && counts="$counts 8"

# One line "name layer tokens top_k options" a run; the trained layer has no tokens here.
jobs() {
    for ranks in $counts; do
        for path in staged fused; do
            options="--backend cuda --ranks $ranks --path $path"
            sed -n "s|^\([a-z][^ ]*\) \([^ ]*\) \(.*\)|\1_\2_${ranks}_$path $source_dir/tests/golden/\1/\2.safetensors \3 $options|p" \
                "$source_dir/tests/golden/layers.txt"
        done
    done
    for how in "1 staged" "2 fused" "4 staged"; do # its oracle takes longer
        echo "trained_${how% *}_${how#* } $source_dir/data/qwen3moe-code/layer.safetensors - - --backend cuda --ranks ${how% *} --path ${how#* }"
    done
}

# All in one process, then table by table.
jobs | while read -r name layer tokens top_k options; do
    prefix=
    [ "$tokens" = - ] && prefix="--layer model.layers.2.mlp"
    echo "$name --weights $layer --input $(dirname "$layer")/io.safetensors $prefix $options"
done | "$program" "$work"

# Stands for mok: what it printed and how it ended.
cat > "$work/replay" <<'END'
cat "$MOK_TABLE.table"
exit "$(cat "$MOK_TABLE.code")"
END
chmod +x "$work/replay"
jobs | while read -r name layer tokens top_k options; do
    export MOK_TABLE="$work/$name"
    if [ ! -e "$MOK_TABLE.code" ]; then
        echo "FAILED $name: did not run"
    elif [ "$tokens" = - ]; then
        if sh "$work/replay" > "$work/said" && tail -n 1 "$work/said" | grep -q '^result: ok$'; then
            echo "ok     $name"
        else
            echo "FAILED $name: $(tail -n 2 "$work/said" | tr '\n' ' ')"
        fi
    elif sh "$source_dir/tests/golden/golden_layer.sh" "$work/replay" "$layer" "$tokens" "$top_k" > "$work/said" 2>&1; then
        echo "ok     $name"
    else
        echo "FAILED $name: $(tail -n 3 "$work/said" | tr '\n' ' ')"
    fi
done > "$work/results"

cat "$work/results"
passed=$(grep -c '^ok' "$work/results")
failed=$(grep -c '^FAILED' "$work/results")
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
