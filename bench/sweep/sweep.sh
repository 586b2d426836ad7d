#!/bin/bash
# A pass over minibatches, communication CTAs, ring and look-ahead, shape by shape, beside the automatic choice and dense products; at the end how
# far the automatic choice is from the best of the sweep. 3 to 10 s a shape on two H200s, backward 5 to 25 s.
#   sweep.sh [SHAPES]     names joined by commas, each also as E:K:H:I:Is; default: all that mok bench knows by name but tiny-real, and three drawn
#                         by a seed (draw_shapes.py)
# Environment
#   MOK=FILE              a mok that is built already (needed)
#   PASS=forward          or backward
#   SEED=4                of the shapes that are drawn; SEED= (nothing) for none. 1 to 3 were seen while the choice was fitted
#   REPEAT, WARM_UP       of each point, in turn with the automatic choice; default 5, 2
#   CONFIRM               runs of the three fastest points and the automatic choice, in turn; default 25
#   POINTS="A;B;.."       other points than those below
#   TRACE=qwen3-30b       the shape of which one pass is traced at the end, about 4 s; TRACE= (nothing) for none
#   COMMIT=TEXT           for the JSON, where git cannot be asked
#   NAME=TEXT             of the files; default sweep_PASS_, the GPU, how many: sweep_forward_h200x2
# NAME.json (a list, a sweep an entry), NAME.svg and NAME.md (the table) go to $OUT, or to bench/results; NAME_trace.txt (what each role of the kernel did
# and waited for) and NAME_trace.svg (every 16th CTA) with them. Into the page:
#   sweep_plot.py --docs docs/performance.md --out docs/sweeps_PASS.svg bench/results/NAME.json
set -u
cd "$(dirname "$0")/../.." || exit 1
. bench/gpus.sh
give_help bench/sweep/sweep.sh "$@"
find_gpus
[ -x "${MOK:-}" ] || refuse "MOK is '${MOK:-}': must name a mok that is built already"
out=${OUT:-bench/results}
pass=${PASS:-forward}
seed=${SEED-4}
full=kimi-k2,glm-5.2,qwen3.5,deepseek-v4-pro
shapes=${1:-qwen3-30b,mixtral-8x7b,${full//,/-slice,}-slice,$full${seed:+,$(python3 bench/sweep/draw_shapes.py "$seed" | paste -sd,)}}
failed=0
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
name=${NAME:-sweep_${pass}_${gpu}x$gpus}

# Points NAME=VALUE of the fused path; what stands in front is the automatic choice of everything.
points_of() {
    list=path=fused
    for rows in $1; do list="$list;path=fused,minibatch=$rows"; done
    for ctas in $2; do list="$list;path=fused,comm-workers=$ctas"; done
    for more in $3; do list="$list;path=fused,$more"; done
    echo "$list;path=staged"
}

if [ "$pass" = forward ]; then
    all=$(points_of "512 1024 1536 2048 3072 4096 5120 6144 8192 12288 16384" "2 4 8 16 24 32 48 64 96" "ring=2 ring=8 look-ahead=2 look-ahead=3")
else
    all=$(points_of "512 1024 2048 3072 4096 6144 8192 12288 16384" "2 4 8 16 24 32 48 64 96" "ring=2 look-ahead=2")
fi
few=$(points_of "512 1024 2048 4096 8192 16384" "2 8 16 48" "") # for the largest shapes: the same ends, fewer points between

files=()
for shape in ${shapes//,/ }; do
    given=(--shape "$shape")
    if [[ $shape == *:* ]]; then
        IFS=: read -r experts top_k hidden inter shared <<< "$shape"
        given=(--experts "$experts" --top-k "$top_k" --hidden "$hidden" --intermediate "$inter" --shared "$shared" --tokens 8192)
    fi
    case ,$full, in *",$shape,"*) points=$few ;; *) points=$all ;; esac
    file=$work/${shape//:/-}.json
    since=$SECONDS
    echo "== $shape, $pass"
    timeout -k 5 90 "$MOK" bench --backend cuda "${given[@]}" --pass "$pass" --repeat "${REPEAT:-5}" --warm-up "${WARM_UP:-2}" \
        --confirm "${CONFIRM:-25}" ${COMMIT:+--commit "$COMMIT"} --json "$file" --sweep "${POINTS:-$points}" || { failed=$((failed + 1)); continue; }
    echo "-- $((SECONDS - since)) s"
    files+=("$file")
done
if [ ${#files[@]} -gt 0 ]; then
    python3 bench/sweep/sweep_plot.py --out "$out/$name.svg" --merge "$out/$name.json" "${files[@]}" > "$out/$name.md" || failed=$((failed + 1))
    cat "$out/$name.md"
fi
trace=${TRACE-qwen3-30b}
if [ -n "$trace" ]; then
    timeout -k 5 60 "$MOK" bench --backend cuda --shape "$trace" --pass "$pass" --repeat "${REPEAT:-5}" --warm-up "${WARM_UP:-2}" --sweep path=fused \
        --summary --ctas 16 --timeline "$out/${name}_trace.svg" > "$out/${name}_trace.txt" || failed=$((failed + 1))
fi
[ $failed -eq 0 ]
