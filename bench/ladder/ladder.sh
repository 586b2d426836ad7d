#!/bin/bash
# Builds the ladder in its variants, checks each, times each, prints a short table last. On a machine with a Hopper
# GPU.
#   ladder.sh [SHAPES]      SHAPES: names joined by commas, default all
#   VARIANTS="name:flags;name:flags"     nvcc flags of each variant; default: the production constants
#   ROW_GROUPS="16 8"                        row groups (order of tiles) to time
# JSON lines and logs go to $OUT, or to bench/results.
cd "$(dirname "$0")/../.." || exit 1
. bench/gpus.sh
give_help bench/ladder/ladder.sh "$@"
find_gpus
out=${OUT:-bench/results}
mkdir -p "$out"
shapes=${1:-all}
variants=${VARIANTS:-default:}
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
query=name,driver_version,clocks.sm,clocks.mem,power.limit,power.draw,temperature.gpu
nvidia-smi --query-gpu=$query --format=csv | tee "$out/ladder.device.csv"
IFS=';' read -ra list <<< "$variants"
for variant in "${list[@]}"; do
    name=${variant%%:*}
    bash bench/ladder/build.sh "$build/$name" ${variant#*:} > "$out/ladder.build.$name.log" 2>&1 &
done
wait
for variant in "${list[@]}"; do
    name=${variant%%:*}
    [ -x "$build/$name" ] || { echo "$name does not build"; tail -5 "$out/ladder.build.$name.log"; continue; }
    if [ -z "$SKIP_VERIFY" ]; then
        timeout 120 "$build/$name" verify > "$out/ladder.verify.$name.log" 2>&1
        code=$?
        echo "$name: verify exit $code: $(tail -1 "$out/ladder.verify.$name.log")"
        grep -m 12 FAIL "$out/ladder.verify.$name.log"
        [ $code -eq 0 ] || [ -n "$TIME_ANYWAY" ] || continue
    fi
    for group in ${ROW_GROUPS:-0}; do
        log="$out/ladder.speed.$name.$group.log"
        LADDER_ROW_GROUP=$group LADDER_JSON="$out/ladder.jsonl" timeout 120 "$build/$name" speed "$shapes" "$name-g$group" > "$log" 2>&1 ||
            echo "$name: speed exit $?"
        echo "== $name, row group $group"
        cut -c1-160 "$log"
    done
done
nvidia-smi --query-gpu=clocks.sm,power.draw,temperature.gpu --format=csv,noheader
