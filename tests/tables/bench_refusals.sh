#!/bin/sh
# The scripts of bench/ where there is no GPU: one plain sentence, the code of what is not available, and nothing built or written; with a wrong
# argument a sentence, too, and help for who asks. Each runs in a copy of its own of the folder. Usage: bench_refusals.sh SOURCE_DIR
set -u
command -v bash > /dev/null && command -v python3 > /dev/null || { echo "no bash or no python3"; exit 77; }
source=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
mkdir "$work/bin" "$work/tree" "$work/temp"
cp -r "$source/bench" "$work/tree/bench"
# Only what a script needs to find out that it cannot run: nvcc or cmake would be named in what it says.
for tool in bash sh basename cat cmp cut dirname find git grep head ls mkdir mktemp paste rm sed sort tail tee timeout tr wc; do
    path=$(command -v "$tool") && ln -s "$path" "$work/bin/$tool"
done
ln -s "$(python3 -c 'import sys; print(sys.executable)')" "$work/bin/python3" # not a wrapper that needs more
find "$work/tree" | sort > "$work/before"

# expect CODE SENTENCE [NAME=VALUE...] -- COMMAND...: all that is said, in one line.
expect() {
    code=$1 sentence=$2
    shift 2
    set -- env -u CUDA_VISIBLE_DEVICES PATH="$work/bin" TMPDIR="$work/temp" PYTHONDONTWRITEBYTECODE=1 "$@"
    got=0
    (cd "$work/tree" && exec "$@") > "$work/said" 2>&1 || got=$?
    find "$work/tree" | sort > "$work/after"
    if [ "$got" -ne "$code" ] || [ "$(cat "$work/said")" != "$sentence" ] || ! cmp -s "$work/before" "$work/after" || [ -n "$(ls "$work/temp")" ]; then
        echo "$*: ended with $got, expected $code and \"$sentence\":"
        head -n 8 "$work/said"
        grep -v -x -F -f "$work/before" "$work/after"
        failed=1
    fi
}

env=$(command -v env)
ln -s "$env" "$work/bin/env"
scripts="layer scale/scale sweep/sweep move/move ladder/ladder"
for script in $scripts; do
    name=$(basename "$script").sh
    expect 77 "$name: no GPU: nvidia-smi is not found" bash "bench/$script.sh"
    expect 77 "$name: no GPU: nvidia-smi is not found" CUDA_VISIBLE_DEVICES=0 COUNTS=1 MOK=/bin/true bash "bench/$script.sh"
done
expect 2 "scale.sh: step 'tets': must be tests, layer, sweep, move or tables" bash bench/scale/scale.sh tets
expect 2 "build.sh: the program to build must be named: build.sh OUTPUT [FLAG...]" sh bench/ladder/build.sh
expect 1 "draw_shapes.py: SEED is 'three': must be a whole number" python3 bench/sweep/draw_shapes.py three
expect 1 "none.json: cannot be read: No such file or directory" python3 bench/sweep/sweep_plot.py none.json
expect 1 "no results of mok bench" python3 bench/layer_table.py none.json
expect 1 "bench/gpus.sh: cannot be read: Expecting value: line 1 column 1 (char 0)" python3 bench/layer_table.py bench/gpus.sh
expect 1 "none.json: cannot be read: No such file or directory" python3 bench/layer_table.py --docs none.json bench/results/layer_h200x2.json
expect 1 "none/here.json: cannot be written: No such file or directory" python3 bench/layer_table.py --merge none/here.json bench/results/layer_h200x2.json

# A driver that is there and finds nothing.
printf '#!/bin/sh\nexit 0\n' > "$work/bin/nvidia-smi"
chmod +x "$work/bin/nvidia-smi"
for script in $scripts; do
    expect 77 "$(basename "$script").sh: no GPU: nvidia-smi names none" bash "bench/$script.sh"
done
printf '#!/bin/sh\necho "no devices were found"\nexit 6\n' > "$work/bin/nvidia-smi"
for script in $scripts; do
    expect 77 "$(basename "$script").sh: no GPU: nvidia-smi failed" CUDA_VISIBLE_DEVICES=0 bash "bench/$script.sh"
done
# With a GPU: what else is missing.
printf '#!/bin/sh\ncase $* in *index*) echo 0 ;; *) echo "NVIDIA H200" ;; esac\n' > "$work/bin/nvidia-smi"
expect 2 "sweep.sh: MOK is '': must name a mok that is built already" bash bench/sweep/sweep.sh
expect 2 "left out: 4 GPUs, the machine has 1
scale.sh: COUNTS is '4': the machine has 1 GPUs" COUNTS=4 bash bench/scale/scale.sh

for script in $scripts; do
    for option in -h --help; do
        (cd / && PATH=$work/bin bash "$work/tree/bench/$script.sh" "$option" > "$work/said" 2>&1) && grep -q -e "\$OUT" "$work/said" &&
            ! grep -q -e '^#' "$work/said" || { echo "bench/$script.sh $option:"; head -n 5 "$work/said"; failed=1; }
    done
done
(cd "$work/tree" && sh bench/ladder/build.sh -h) | grep -q -e 'build.sh OUTPUT' || { echo "build.sh -h gives no help"; failed=1; }
exit $failed
