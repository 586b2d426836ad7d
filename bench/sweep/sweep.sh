#!/bin/bash
# One fused pass over minibatches and over communication CTAs, shape by shape, beside the staged path, the automatic choice and dense products.
#   sweep.sh [SHAPES]     names joined by commas, each also as "E,K,H,I,Is" with colons (64:6:3072:1280:0); default: those of the targets
# Environment
#   MOK=FILE              a mok that is built already (needed)
#   PASS=forward          or backward
#   REPEAT, WARM_UP       of each point; default 5, 2
#   COMMIT=TEXT           for the JSON, where git cannot be asked
# sweep_SHAPE.json goes to $OUT, or to bench/results; sweep_PASS.svg beside it.
set -u
cd "$(dirname "$0")/../.." || exit 1
shapes=${1:-qwen3-30b,mixtral-8x7b,kimi-k2-slice,glm-5.2-slice,qwen3.5-slice,deepseek-v4-pro-slice}
out=${OUT:-bench/results}
pass=${PASS:-forward}
failed=0
mkdir -p "$out"
points="path=fused"
for rows in 512 1024 1536 2048 2560 3072 3584 4096 5120 6144 8192; do points="$points;minibatch=$rows"; done
for ctas in 2 4 8 16 24 32 48 64 96 132; do points="$points;comm-workers=$ctas"; done
points="$points;path=fused" # the automatic choice again: how far the machine has drifted
files=()
for shape in ${shapes//,/ }; do
    given=(--shape "$shape")
    if [[ $shape == *:* ]]; then
        IFS=: read -r experts top_k hidden inter shared <<< "$shape"
        given=(--experts "$experts" --top-k "$top_k" --hidden "$hidden" --intermediate "$inter" --shared "$shared" --tokens 8192)
    fi
    file=$out/sweep_${pass}_${shape//:/-}.json
    echo "== $shape, $pass"
    timeout -k 5 60 "${MOK:?a built mok}" bench --backend cuda --path fused "${given[@]}" --pass "$pass" --repeat "${REPEAT:-5}" \
        --warm-up "${WARM_UP:-2}" ${COMMIT:+--commit "$COMMIT"} --json "$file" --sweep "$points" || { failed=$((failed + 1)); continue; }
    files+=("$file")
done
python3 bench/sweep/sweep_plot.py --out "$out/sweep_$pass.svg" "${files[@]}" || failed=$((failed + 1))
[ $failed -eq 0 ]
