#!/bin/sh
# Under any limit of address space mok ends: with its result, or with a sentence and the code of an error. It never stands still, neither in a
# pass nor at its end. Usage: cli_little_memory.sh MOK GOLDEN_DIR
set -eu
mok=$1
golden=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
OPENBLAS_NUM_THREADS=2 # each of its own threads takes a buffer, whatever mok does: as few on a large machine
export OPENBLAS_NUM_THREADS
failed=0
refused=0
done=0

# A sanitizer reserves more than any of these limits.
if ! (ulimit -v 3000000; "$mok" --version > "$work/out" 2>&1); then
    echo "no limit of address space works here"
    exit 77
fi
limit=200000
while [ "$limit" -le 3000000 ]; do
    code=0
    (ulimit -v "$limit"; exec timeout -k 2 20 "$mok" run --weights "$golden/qwen3_moe/layer.safetensors" --backend cpu --ranks 4 --comm-workers 1 \
        --compute-workers 2 --input "$golden/qwen3_moe/io.safetensors" > "$work/out" 2> "$work/err") || code=$?
    case $code in
    0) done=$((done + 1)) ;;
    3)
        refused=$((refused + 1))
        grep -q -e '^mok run: .*(MOK_ERR_MEMORY)$' "$work/err" || { echo "ulimit -v $limit: no sentence:"; cat "$work/err"; failed=1; }
        ;;
    *)
        # Not even the libraries can be loaded, or OpenBLAS ends the process while it is loaded.
        if (ulimit -v "$limit"; exec timeout -k 2 20 "$mok" --version > "$work/out" 2>&1); then
            echo "ulimit -v $limit: ended with $code:"
            cat "$work/err"
            failed=1
        fi
        ;;
    esac
    limit=$((limit + 100000))
done
echo "$done limits are enough, $refused are refused"
[ "$done" -gt 0 ] && [ "$refused" -gt 0 ] || { echo "the limits tried say nothing"; failed=1; }
exit $failed
