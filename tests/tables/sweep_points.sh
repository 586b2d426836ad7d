#!/bin/sh
# bench/sweep/sweep.sh asks of every shape, in both passes, what was promised: minibatches from 512 to 8,192 rows, 2 to 48 communication CTAs, the staged
# path, and a comparison of the automatic choice with the fastest points; of all shapes with a name and of three drawn by a seed that was not seen before.
# A mok that writes what it was asked stands in for the tool. Usage: sweep_points.sh SOURCE_DIR
set -eu
command -v python3 > /dev/null && command -v bash > /dev/null || { echo "no python3 or no bash"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin"
printf '#!/bin/sh\ncase $* in *index*) printf "0\\n1\\n" ;; *) echo "NVIDIA H200" ;; esac\n' > "$work/bin/nvidia-smi"
cat > "$work/bin/mok" << 'END'
#!/usr/bin/env python3
import json, sys
words = sys.argv[2:]
given = {words[i]: words[i + 1] for i in range(len(words) - 1) if words[i].startswith("--")}
if "--timeline" in given:  # one traced pass
    assert "--summary" in words and given["--sweep"] == "path=fused"
    open(given["--timeline"], "w").write(given["--pass"])
    print("kernel of pass", given["--shape"])
    sys.exit(0)
shape = {"name": given.get("--shape", ""), "tokens": 8192, "experts": int(given.get("--experts", 1)), "top_k": int(given.get("--top-k", 1)),
         "hidden": int(given.get("--hidden", 1)), "intermediate": int(given.get("--intermediate", 1)), "shared_intermediate": int(given.get("--shared", 0))}
spread = {"median": 2.0}
slow = shape["name"] == "mixtral-8x7b"  # its automatic choice is 4% off
again = [{"options": "", "layer_ms": {"median": 2.08 if slow else 2.0}}, {"options": "path=fused,minibatch=512", "layer_ms": spread}]
points = [{"options": text, "layer_ms": spread, "over_as_given": 1.0} for text in given["--sweep"].split(";")]
json.dump({"command": " ".join(sys.argv), "pass": given["--pass"], "confirm": int(given["--confirm"]), "commit": "0", "shape": shape, "points": points,
           "again": again, "dense_ms": spread, "machine": {"driver": "0", "devices": [{"name": "H200"}] * 2}}, open(given["--json"], "w"))
END
chmod +x "$work/bin/nvidia-smi" "$work/bin/mok"
for pass in forward backward; do
    PATH=$work/bin:$PATH CUDA_VISIBLE_DEVICES='' MOK=$work/bin/mok PASS=$pass OUT=$work/out bash "$1/bench/sweep/sweep.sh" > "$work/log" 2>&1 ||
        { echo "sweep.sh failed:"; tail -n 5 "$work/log"; exit 1; }
    grep -q -x -e 'Within 3% of the fastest point: 12 of 13, not mixtral-8x7b.' "$work/log" || { echo "$pass: the table does not name what is beyond 3%"; exit 1; }
    for file in "$work/out/sweep_${pass}_h200x2.svg" "$work/out/sweep_${pass}_h200x2_trace.svg" "$work/out/sweep_${pass}_h200x2_trace.txt"; do
        [ -s "$file" ] || { echo "$pass: no $file"; exit 1; }
    done
    python3 - "$work/out/sweep_${pass}_h200x2.json" "$pass" << 'END'
import json, sys
names = {name + tail for name in ("kimi-k2", "glm-5.2", "qwen3.5", "deepseek-v4-pro") for tail in ("", "-slice")} | {"qwen3-30b", "mixtral-8x7b"}
sweeps = json.load(open(sys.argv[1]))
assert {sweep["shape"]["name"] for sweep in sweeps} == names | {""}, "shapes"
assert len({json.dumps(sweep["shape"]) for sweep in sweeps if not sweep["shape"]["name"]}) == 3, "drawn shapes"
for sweep in sweeps:
    options = [dict(pair.split("=") for pair in point["options"].split(",")) for point in sweep["points"]]
    def alone(name):
        return {int(point[name]) for point in options if set(point) == {"path", name} and point["path"] == "fused"}
    assert sweep["pass"] == sys.argv[2] and sweep["confirm"] >= 25, "pass, confirmation"
    assert {512, 1024, 2048, 4096, 8192} <= alone("minibatch"), "minibatches"
    assert {2, 8, 16, 48} <= alone("comm-workers"), "communication CTAs"
    assert {"path": "staged"} in options, "staged path"
print(len(sweeps), "sweeps,", sys.argv[2])
END
done
