#!/bin/sh
# One golden layer through mok run: ids, weights, output and gradients of the transformers package. Also looks that each of them was compared, every
# row and every route. Usage: golden_layer.sh MOK LAYER_FILE TOKENS TOP_K [OPTION...]; options of mok run, default --backend cpu --ranks 3
set -eu
folder=$(dirname "$2")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mok=$1 layer=$2 tokens=$3 routes=$(($3 * $4))
shift 4
[ $# -gt 0 ] || set -- --backend cpu --ranks 3
if ! "$mok" run --weights "$layer" --input "$folder/io.safetensors" "$@" > "$work/table"; then
    cat "$work/table"
    exit 1
fi
failed=0
# expect NAME CHECKED: that many, none failed; dx rows near a clamp bound may be left out.
expect() {
    line=$(grep -e "^$1  " "$work/table" || true)
    set -- "$1" "$2" $(echo "${line#"$1"}")
    if [ "$((${3:-0} + ${5:-0}))" -ne "$2" ] || [ "${4:-1}" -ne 0 ] || [ "${5:-99}" -gt 2 ]; then
        echo "expected $2 times '$1', none failed: $line"
        failed=1
    fi
}
expect "router ids, stored" $routes
expect "router weights, stored" $routes
expect "y rows, stored output" "$tokens"
expect "dx rows, stored" "$tokens"
expect "router weight gradients, stored" $routes
case $folder in
*qwen2_moe) expect "shared weight gradients, stored" "$tokens" ;;
esac
grep -e '^worst row error' "$work/table"
exit $failed
