"""Stands for mok and nvidia-smi where there is no GPU: what bench/scale needs of them, with times that follow from the arguments alone.

   bench_fake.py mok bench ... | bench_fake.py nvidia-smi ...
"""
import json
import os
import sys

LINK_BYTES_PER_MS = 400e6
SHAPES = {"qwen3-30b": (128, 8, 2048, 768), "mixtral-8x7b": (8, 2, 4096, 14336)}


def spread(value):
    return {"least": value, "median": value, "most": value, "all": [value] * 3}


def forward_ms(tokens, count, skew):
    """Longer with more GPUs by a tenth for each doubling; skewed runs by a half."""
    return tokens / 8192 * (1 + 0.1 * (count.bit_length() - 1)) * (1.5 if skew != "balanced" else 1)


def make_pass(tokens, count, skew, scale):
    ms = scale * forward_ms(tokens, count, skew)
    return {"operations": 1e12, "tflops_per_gpu": 100 * tokens / 8192 / ms * scale, "layer_ms": spread(ms), "dense_over_layer": spread(0.5),
            "layer_over_floor": spread(1.25), "layer_over_stage_floors": spread(1.0)}


def make_path(tokens, count, skew, scale):
    forward, backward = make_pass(tokens, count, skew, scale), make_pass(tokens, count, skew, 2 * scale)
    return {"forward": dict(forward, schedule_ms=spread(0.03)), "backward": backward}


def head(shape, tokens, count, skew):
    experts, top_k, hidden, inter = SHAPES.get(shape, (64, 8, 256, 128))
    busiest = tokens * top_k * (2 if skew != "balanced" else 1)
    remote = busiest * (count - 1) // count
    return {
        "command": "/tmp/somewhere/mok bench", "commit": "0123456789abcdef", "build": "fake", "backend": "cuda", "peer": "threads", "zero_copy": False,
        "machine": {"devices": [{"name": "NVIDIA H200", "sms": 132}] * count, "driver": "1.2", "power_limit_watts": 700, "cublas_version": 1},
        "shape": {"name": shape, "experts": experts, "top_k": top_k, "hidden": hidden, "intermediate": inter, "shared_intermediate": 0, "tokens": tokens,
                  "num_ranks": count, "skew": skew, "balanced_tokens": busiest // top_k},
        "num_repeats": 3, "num_warmups": 1, "rows": [busiest] + [tokens * top_k] * (count - 1), "rows_from_other_gpus": [remote] * count,
        "rows_to_other_gpus": [remote] * count,
    }


def make_layer(shape, tokens, count, skew):
    yardsticks = {"link_bytes_per_ms": spread(LINK_BYTES_PER_MS if count > 1 else 0.0), "copy_bytes_per_ms": spread(3.8e9), "sm_mhz": spread(1700.0)}
    return dict(head(shape, tokens, count, skew), yardsticks=yardsticks, stages=[],
                paths={"fused": make_path(tokens, count, skew, 1), "staged": make_path(tokens, count, skew, 1.5)})


def make_sweep(shape, tokens, count, direction):
    points = [{"options": options, "layer_ms": spread(ms), "over_as_given": ms}
              for options, ms in (("path=fused", 1.0), ("path=fused,minibatch=1024", 1.1), ("path=fused,minibatch=2048", 1.05),
                                  ("path=fused,comm-workers=8", 1.3), ("path=fused,comm-workers=16", 1.2), ("path=staged", 1.5))]
    again = [{"options": "", "layer_ms": spread(1.0)}, {"options": "path=fused,minibatch=2048", "layer_ms": spread(0.99)}]
    return dict(head(shape, tokens, count, "balanced"), **{"pass": direction, "dense_ms": spread(0.7), "points": points, "again": again})


def num_gpus():
    return len(os.environ.get("CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5,6,7").split(","))


def option(words, name, otherwise):
    return words[words.index(name) + 1] if name in words else otherwise


def mok(words):
    shape, tokens, skew = option(words, "--shape", "real64"), int(option(words, "--tokens", "8192")), option(words, "--skew", "balanced")
    if "--sweep" in words:
        result = make_sweep(shape, tokens, num_gpus(), option(words, "--pass", "forward"))
    else:
        result = make_layer(shape, tokens, num_gpus(), skew)
    if os.environ.get("FAKE_FAILS") == shape:
        sys.exit("mok bench: as asked, this shape fails")
    with open(option(words, "--json", os.devnull), "w", encoding="utf-8") as file:
        json.dump(result, file)


def nvidia_smi(words):
    fields = next(word for word in words if word.startswith("--query-gpu=")).split("=")[1].split(",")
    known = {"name": "NVIDIA H200", "memory.total": "143771"}
    for idx in range(8):
        print(", ".join(str(idx) if field == "index" else known.get(field, "0") for field in fields))


if __name__ == "__main__":
    {"mok": mok, "nvidia-smi": nvidia_smi}[sys.argv[1]](sys.argv[2:])
