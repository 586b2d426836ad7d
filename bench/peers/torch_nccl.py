#!/usr/bin/env python3
"""The layer as PyTorch runs it: sort, NCCL all-to-all, torch's grouped GEMM. The baseline that `mok bench` is compared with.

One process a GPU:  python3 torch_nccl.py ...   or   torchrun --standalone --nproc-per-node N torch_nccl.py ...
One process alone exchanges nothing: its routes are sorted, multiplied and summed.

In the timed part: everything from ids to y (forward) and from dy to dx, dw and weight gradients (backward, by hand, no autograd). What is
handed in ready-made, to the baseline's advantage: how many rows go from each rank to each (`splits`), which eager code would have to copy
to the host and wait for. So nothing in the timed part waits for the host; torch's own sync check is asked about that in a run that is not
timed. Weight gradients come out of the grouped GEMM in bf16 and are added to fp32 sums.

Timing as in `mok bench`: the median of at least 30 runs after at least 10, of the largest over ranks; device events; random normal inputs
in turn; caches overwritten before each run; the stream is held meanwhile, so that launches are enqueued before the clock starts; with
several ranks a one-word all-reduce lines the GPUs up. The same products as dense ones (torch.mm, cuBLAS) are timed in turn.

Before anything is timed, y, dx, dw and the gradients are compared with a plain loop over experts in fp32.
"""
import argparse
import json
import os
import subprocess
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F

# name: experts, top_k, hidden, inter, shared_inter; as in `mok bench --help`
SHAPES = {
    "qwen3-30b": (128, 8, 2048, 768, 0),
    "mixtral-8x7b": (8, 2, 4096, 14336, 0),
    "kimi-k2": (384, 8, 7168, 2048, 2048),
    "kimi-k2-slice": (12, 8, 7168, 2048, 2048),
    "glm-5.2": (256, 8, 6144, 2048, 2048),
    "glm-5.2-slice": (8, 8, 6144, 2048, 2048),
    "qwen3.5": (512, 10, 4096, 1024, 1024),
    "qwen3.5-slice": (16, 10, 4096, 1024, 1024),
    "deepseek-v4-pro": (384, 6, 7168, 3072, 3072),
    "deepseek-v4-pro-slice": (12, 6, 7168, 3072, 3072),
    "tiny-real": (64, 8, 256, 128, 0),
}
NUM_SETS = 4
SCRUB_BYTES = 512 << 20
HOLD_CYCLES = 4_000_000  # about 2 ms: longer than the launches of a pass take
# Limits of the check. bf16 has 8 significant bits: a rounding errs by 2^-8 of the leading power of two at most, by 0.17% of the value in the root mean
# square. y has seven of them behind it (gate, up, silu, h, y of a route, w, the sum), other results about as many, all independent: sqrt(7) * 0.17% =
# 0.44% of a tensor's norm (mixtral-8x7b: 0.43 to 0.48% in all tensors). The number of rows does not matter, because sums are kept in fp32. A lost row,
# weight or term is 100% of its row.
WHOLE_LIMIT = 1e-2  # ||out - ref|| / ||ref|| of a tensor: twice what is expected
ROW_LIMIT = 4e-2  # the same of its worst row: what a tensor may have, times four for the worst of 10^4 rows

grouped_mm = getattr(F, "grouped_mm", None) or torch._grouped_mm


class Place:
    """This process among the others."""

    def __init__(self, device_type):
        self.rank = int(os.environ.get("RANK", "0"))
        self.world = int(os.environ.get("WORLD_SIZE", "1"))
        local = int(os.environ.get("LOCAL_RANK", "0"))
        self.is_cuda = device_type == "cuda"
        self.device = torch.device("cuda", local) if self.is_cuda else torch.device("cpu")
        if self.is_cuda:
            torch.cuda.set_device(self.device)
        if self.world > 1:
            dist.init_process_group("nccl" if self.is_cuda else "gloo", device_id=self.device if self.is_cuda else None)

    def normal(self, seed, *shape, scale=1.0):
        """bf16 [shape]: a pure function of the seed, so that any rank can make what another has."""
        generator = torch.Generator(self.device).manual_seed(seed)
        return torch.randn(*shape, generator=generator, device=self.device, dtype=torch.bfloat16) * scale

    def exchange(self, rows, splits_out, splits_in):
        """Rows to their ranks. Moved as words: gloo has no bf16."""
        if self.world == 1:
            return rows
        result = rows.new_empty(sum(splits_in), *rows.shape[1:])
        dist.all_to_all_single(result.view(torch.int32), rows.view(torch.int32), splits_in, splits_out)
        return result


# ---- the problem -------------------------------------------------------------------------------------------------------------


class LeftOut(Exception):
    """The baseline has no way to run this; libmok may have one."""


class Sizes:
    def __init__(self, name, tokens, world):
        self.name = name
        self.experts, self.top_k, self.hidden, self.inter, self.shared_inter = SHAPES[name]
        self.tokens = tokens
        if self.experts % world:
            raise LeftOut(f"{self.experts} experts do not divide among {world} ranks")
        self.local = self.experts // world

    def operations(self, world, is_backward):
        forward = 6 * self.tokens * self.hidden * (self.top_k * self.inter + self.shared_inter) * world
        return forward * (2 if is_backward else 1)


def make_weights(place, sizes, expert):
    """Gate and up [2I, H], down [H, I] of one expert; expert -1: the shared one."""
    inter = sizes.shared_inter if expert < 0 else sizes.inter
    seed = 1_000_000 + 2 * (expert + 1)
    return (place.normal(seed, 2 * inter, sizes.hidden, scale=sizes.hidden**-0.5),
            place.normal(seed + 1, sizes.hidden, inter, scale=inter**-0.5))


def make_ids(place, sizes, skew, generator):
    """ids [T, K] int32 and softmax weights [T, K] fp32: normal logits (balanced), Gumbel noise on 1/rank (zipf), expert 0 first (hot)."""
    logits = torch.randn(sizes.tokens, sizes.experts, generator=generator, device=place.device)
    if skew == "zipf":
        uniform = torch.rand(sizes.tokens, sizes.experts, generator=generator, device=place.device).clamp_(1e-7, 1 - 1e-7)
        shuffled = torch.randperm(sizes.experts, generator=torch.Generator().manual_seed(7)).to(place.device)
        logits = -torch.log(shuffled.float() + 1) - torch.log(-torch.log(uniform))
    elif skew == "hot":
        logits[:, 0] = logits.max(dim=1).values + 0.5
    chosen, ids = torch.topk(logits, sizes.top_k, dim=1)
    return ids.to(torch.int32), torch.softmax(chosen, dim=1)


class Inputs:
    """One set of a rank's inputs. splits_out: rows to each rank; splits_in: from each."""

    def __init__(self, place, sizes, skew, rank, index):
        seed = 10_000 * (rank + 1) + 10 * index
        self.x = place.normal(seed, sizes.tokens, sizes.hidden)
        self.dy = place.normal(seed + 1, sizes.tokens, sizes.hidden)
        self.ids, self.w = make_ids(place, sizes, skew, torch.Generator(place.device).manual_seed(seed + 2))
        counts = torch.bincount(self.ids.view(-1), minlength=sizes.experts)
        self.splits_out = counts.view(-1, sizes.local).sum(1)

    def meet(self, place):
        """Collective: who sends how much to whom, as lists on the host."""
        self.splits_in = self.splits_out.clone()
        if place.world > 1:
            dist.all_to_all_single(self.splits_in, self.splits_out)
        self.splits_out, self.splits_in = self.splits_out.tolist(), self.splits_in.tolist()


# ---- the layer ---------------------------------------------------------------------------------------------------------------


class Layer:
    def __init__(self, place, sizes):
        self.place, self.sizes = place, sizes
        first = place.rank * sizes.local
        self.gate_up = torch.empty(sizes.local, 2 * sizes.inter, sizes.hidden, device=place.device, dtype=torch.bfloat16)
        self.down = torch.empty(sizes.local, sizes.hidden, sizes.inter, device=place.device, dtype=torch.bfloat16)
        for expert in range(sizes.local):
            self.gate_up[expert], self.down[expert] = make_weights(place, sizes, first + expert)
        self.grad_gate_up = torch.zeros_like(self.gate_up, dtype=torch.float32)
        self.grad_down = torch.zeros_like(self.down, dtype=torch.float32)
        if sizes.shared_inter:
            self.shared_gate_up, self.shared_down = make_weights(place, sizes, -1)
            self.grad_shared_gate_up = torch.zeros_like(self.shared_gate_up, dtype=torch.float32)
            self.grad_shared_down = torch.zeros_like(self.shared_down, dtype=torch.float32)

    def clear(self):
        for name, value in vars(self).items():
            if name.startswith("grad_"):
                value.zero_()

    def _sort(self, inputs):
        """Where each route goes: positions in order of experts, and, with several ranks, the order of experts among received rows."""
        sizes, place = self.sizes, self.place
        flat = inputs.ids.view(-1)
        order = torch.argsort(flat, stable=True)
        back = torch.empty_like(order)
        back.scatter_(0, order, torch.arange(order.numel(), device=place.device))
        counts = torch.zeros(sizes.experts, device=place.device, dtype=torch.int32)
        counts.index_add_(0, flat, torch.ones_like(flat))
        received = None
        if place.world > 1:
            theirs = torch.empty_like(counts)
            dist.all_to_all_single(theirs, counts)
            counts = theirs.view(place.world, sizes.local)
            experts = torch.arange(sizes.local, device=place.device).repeat(place.world)
            experts = torch.repeat_interleave(experts, counts.view(-1), output_size=sum(inputs.splits_in))
            received = torch.argsort(experts, stable=True)
            counts = counts.sum(0)
        return order, back, received, counts.cumsum(0).to(torch.int32)

    def _to_experts(self, rows, inputs, received):
        rows = self.place.exchange(rows, inputs.splits_out, inputs.splits_in)
        return rows if received is None else rows.index_select(0, received)

    def _to_tokens(self, rows, inputs, received, back):
        """The results of each token's K routes, [T, K, H]."""
        if received is not None:
            sent = torch.empty_like(rows)
            rows = self.place.exchange(sent.index_copy_(0, received, rows), inputs.splits_in, inputs.splits_out)
        return rows.index_select(0, back).view(self.sizes.tokens, self.sizes.top_k, self.sizes.hidden)

    def forward(self, inputs):
        """y, and what backward needs."""
        order, back, received, offs = self._sort(inputs)
        tokens = order // self.sizes.top_k
        rows = self._to_experts(inputs.x.index_select(0, tokens), inputs, received)
        gate_up = grouped_mm(rows, self.gate_up.transpose(1, 2), offs=offs)
        gate, up = gate_up.chunk(2, dim=1)
        h = F.silu(gate) * up
        slots = self._to_tokens(grouped_mm(h, self.down.transpose(1, 2), offs=offs), inputs, received, back)
        y = torch.bmm(inputs.w.to(torch.bfloat16).unsqueeze(1), slots).squeeze(1)
        shared = None
        if self.sizes.shared_inter:
            shared_gate_up = inputs.x @ self.shared_gate_up.t()
            gate, up = shared_gate_up.chunk(2, dim=1)
            shared_h = F.silu(gate) * up
            y += shared_h @ self.shared_down.t()
            shared = (shared_gate_up, shared_h)
        return y, (order, back, received, offs, tokens, rows, gate_up, h, slots, shared)

    @staticmethod
    def _activation_backward(dh, gate_up):
        gate, up = gate_up.chunk(2, dim=1)
        grad = torch.empty_like(gate_up)
        d_gate, d_up = grad.chunk(2, dim=1)
        torch.mul(dh, F.silu(gate), out=d_up)
        d_gate.copy_(torch.ops.aten.silu_backward(dh * up, gate))
        return grad

    def backward(self, inputs, saved):
        """dx, dw; gradients of weights are added to."""
        order, back, received, offs, tokens, rows, gate_up, h, slots, shared = saved
        dw = torch.bmm(slots, inputs.dy.unsqueeze(2)).squeeze(2)
        d_slots = inputs.dy.index_select(0, tokens) * inputs.w.view(-1).index_select(0, order).to(torch.bfloat16).unsqueeze(1)
        d_rows = self._to_experts(d_slots, inputs, received)
        d_gate_up = self._activation_backward(grouped_mm(d_rows, self.down, offs=offs), gate_up)
        dx = self._to_tokens(grouped_mm(d_gate_up, self.gate_up, offs=offs), inputs, received, back).sum(1)
        self.grad_gate_up.add_(grouped_mm(d_gate_up.t(), rows, offs=offs))
        self.grad_down.add_(grouped_mm(d_rows.t(), h, offs=offs))
        if shared is not None:
            shared_gate_up, shared_h = shared
            d_gate_up = self._activation_backward(inputs.dy @ self.shared_down, shared_gate_up)
            dx += d_gate_up @ self.shared_gate_up
            self.grad_shared_gate_up.add_(d_gate_up.t() @ inputs.x)
            self.grad_shared_down.add_(inputs.dy.t() @ shared_h)
        return dx, dw


# ---- the check ---------------------------------------------------------------------------------------------------------------


def expert_reference(weights, x, dy, w):
    """One expert's part in fp32: its y and dx rows (weighted), dw and its scale, gradients of its weights. x, dy [n, H], w [n, 1].

    dw is the product of two vectors that know nothing of each other. It is about ||y|| ||dy|| / sqrt(H), but may be anything nearer to zero, and with
    few k some token has nothing else in its row. Its error is not smaller then: y's error meets dy just as y does. So errors of dw are measured
    against that scale, and not against what is left of a sum that cancelled.
    """
    gate_up, down = (matrix.float() for matrix in weights)
    gate, up = (x @ gate_up.t()).chunk(2, dim=1)
    sigmoid = torch.sigmoid(gate)
    h = gate * sigmoid * up
    y = h @ down.t()
    dh = (w * dy) @ down
    d_gate = dh * up * sigmoid * (1 + gate * (1 - sigmoid))
    d_gate_up = torch.cat([d_gate, dh * gate * sigmoid], dim=1)
    scale = y.norm(dim=1) * dy.norm(dim=1) * y.shape[1] ** -0.5
    return w * y, d_gate_up @ gate_up, (y * dy).sum(1), scale, d_gate_up.t() @ x, (w * dy).t() @ h


def add_expert(place, sizes, expert, inputs, sums):
    """Adds one expert's part of a rank's tokens to sums (y, dx [T, H], dw, scale of dw [T, K]); returns the gradients of its weights."""
    weights = make_weights(place, sizes, expert)
    if expert < 0:
        ones = torch.ones(sizes.tokens, 1, device=place.device)
        y, dx, _, _, grad_gate_up, grad_down = expert_reference(weights, inputs.x.float(), inputs.dy.float(), ones)
        sums[0].add_(y), sums[1].add_(dx)
        return grad_gate_up, grad_down
    token, k = (inputs.ids == expert).nonzero(as_tuple=True)
    x, dy, w = inputs.x[token].float(), inputs.dy[token].float(), inputs.w[token, k].unsqueeze(1)
    y, dx, dw, scale, grad_gate_up, grad_down = expert_reference(weights, x, dy, w)
    sums[0].index_add_(0, token, y), sums[1].index_add_(0, token, dx)
    sums[2][token, k], sums[3][token, k] = dw, scale
    return grad_gate_up, grad_down


def error_of(out, ref, scale=None):
    """(of the whole tensor, of its worst row), against the values or their scale; NaN stays NaN and passes no limit."""
    out, ref = out.float().reshape(-1, ref.shape[-1]), ref.reshape(-1, ref.shape[-1])
    scale = ref if scale is None else scale
    difference = (out - ref).norm(dim=1)
    row_scale = scale.norm(dim=1).clamp_min(1e-3 * scale.norm() / max(ref.shape[0], 1) ** 0.5).clamp_min(1e-30)
    return ((out - ref).norm() / scale.norm()).item(), (difference / row_scale).max().item()


def worse(a, b):
    """The larger; NaN is the largest."""
    return a if a > b or a != a else b


def check(place, sizes, layer, skew, inputs):
    """Compares set 0 with the reference. Returns errors by name, and whether all ranks' are within their limits."""
    layer.clear()
    y, saved = layer.forward(inputs)
    dx, dw = layer.backward(inputs, saved)
    own, ignored = ([torch.zeros_like(out, dtype=torch.float32) for out in (y, dx, dw, dw)] for _ in range(2))
    others = [inputs if rank == place.rank else Inputs(place, sizes, skew, rank, 0) for rank in range(place.world)]
    first = place.rank * sizes.local
    worst = {"grad gate+up": (0.0, 0.0), "grad down": (0.0, 0.0)}
    for expert in range(sizes.experts):
        is_local = first <= expert < first + sizes.local
        grads = None
        for rank in range(place.world) if is_local else [place.rank]:
            part = add_expert(place, sizes, expert, others[rank], own if rank == place.rank else ignored)
            grads = part if grads is None else [a + b for a, b in zip(grads, part)]
        if is_local and grads[0].abs().max() > 0:
            pairs = ((layer.grad_gate_up, grads[0], "grad gate+up"), (layer.grad_down, grads[1], "grad down"))
            for out, ref, name in pairs:
                worst[name] = tuple(map(worse, worst[name], error_of(out[expert - first], ref)))
    if sizes.shared_inter:
        grads = add_expert(place, sizes, -1, inputs, own)
        worst["grad shared gate+up"] = error_of(layer.grad_shared_gate_up, grads[0])
        worst["grad shared down"] = error_of(layer.grad_shared_down, grads[1])
    worst.update({"y": error_of(y, own[0]), "dx": error_of(dx, own[1]), "dw": error_of(dw, own[2], own[3])})
    bad = [name for name, (whole, row) in worst.items() if not (whole <= WHOLE_LIMIT and row <= ROW_LIMIT)]
    if bad:
        text = ", ".join(f"{name} {worst[name][0]:.1e} (worst row {worst[name][1]:.1e})" for name in bad)
        print(f"{sizes.name}, rank {place.rank}: WRONG {text}", flush=True)
    is_bad = torch.tensor([len(bad)], device=place.device)
    if place.world > 1:
        dist.all_reduce(is_bad)
    return {name: {"whole": whole, "worst_row": row} for name, (whole, row) in worst.items()}, is_bad.item() == 0


# ---- timing ------------------------------------------------------------------------------------------------------------------


class Dense:
    """The layer's products as dense ones, rows rounded to 128."""

    def __init__(self, place, sizes, rows):
        rows = max(128, (rows + 64) // 128 * 128)
        self.parts = [(rows, sizes.inter)] + ([(sizes.tokens, sizes.shared_inter)] if sizes.shared_inter else [])
        self.hidden = sizes.hidden
        widest = max(max(2 * inter, sizes.hidden) * n for n, inter in self.parts)
        self.a, self.b = place.normal(1, widest), place.normal(2, widest)
        self.weight = place.normal(3, 2 * max(inter for _, inter in self.parts) * sizes.hidden, scale=0.02)

    @staticmethod
    def _as(memory, rows, cols):
        return memory[: rows * cols].view(rows, cols)

    def run(self, is_backward):
        hidden = self.hidden
        for rows, inter in self.parts:
            if not is_backward:
                gate_up = self._as(self.weight, 2 * inter, hidden)
                torch.mm(self._as(self.a, rows, hidden), gate_up.t(), out=self._as(self.b, rows, 2 * inter))
                torch.mm(self._as(self.a, rows, inter), self._as(self.weight, hidden, inter).t(), out=self._as(self.b, rows, hidden))
                continue
            torch.mm(self._as(self.a, rows, hidden), self._as(self.weight, hidden, inter), out=self._as(self.b, rows, inter))
            torch.mm(self._as(self.a, rows, 2 * inter), self._as(self.weight, 2 * inter, hidden), out=self._as(self.b, rows, hidden))
            torch.mm(self._as(self.a, rows, 2 * inter).t(), self._as(self.b, rows, hidden))
            torch.mm(self._as(self.a, rows, hidden).t(), self._as(self.b, rows, inter))


class Clock:
    """Times work on the current stream, milliseconds."""

    def __init__(self, place):
        self.place = place
        self.scrub = torch.empty(SCRUB_BYTES, dtype=torch.uint8, device=place.device)
        self.word = torch.zeros(1, device=place.device)
        self.begin, self.end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def time(self, work):
        if self.place.world > 1:
            dist.barrier()
        self.scrub.zero_()
        torch.cuda._sleep(HOLD_CYCLES)
        if self.place.world > 1:
            dist.all_reduce(self.word)
        self.begin.record()
        result = work()
        self.end.record()
        torch.cuda.synchronize()
        return self.begin.elapsed_time(self.end), result


def find_sync(layer, inputs):
    """What in a forward and backward pass waits for the host, in torch's words; "" = nothing."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        _, saved = layer.forward(inputs)
        layer.backward(inputs, saved)
    except RuntimeError as error:
        return str(error)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return ""


def measure(place, sizes, layer, sets, num_warmups, num_repeats):
    clock, dense = Clock(place), Dense(place, sizes, sum(sets[0].splits_in))
    times = {"forward": [], "backward": [], "dense_forward": [], "dense_backward": []}
    for run in range(-num_warmups, num_repeats):
        inputs = sets[(run + num_warmups) % NUM_SETS]
        forward_ms, (_, saved) = clock.time(lambda: layer.forward(inputs))
        backward_ms, _ = clock.time(lambda: layer.backward(inputs, saved))
        del saved
        dense_forward_ms, _ = clock.time(lambda: dense.run(False))
        dense_backward_ms, _ = clock.time(lambda: dense.run(True))
        if run >= 0:
            for name, value in zip(times, (forward_ms, backward_ms, dense_forward_ms, dense_backward_ms)):
                times[name].append(value)
    table = torch.tensor(list(times.values()), device=place.device, dtype=torch.float64)
    if place.world > 1:
        dist.all_reduce(table, dist.ReduceOp.MAX)
    return dict(zip(times, table.tolist()))


def spread(values):
    ordered = sorted(values)
    count = len(ordered)
    median = ordered[count // 2] if count % 2 else 0.5 * (ordered[count // 2 - 1] + ordered[count // 2])
    return {"least": ordered[0], "median": median, "most": ordered[-1], "all": values}


def figures(sizes, world, times, is_backward):
    name = "backward" if is_backward else "forward"
    operations = sizes.operations(world, is_backward)
    layer = spread(times[name])
    return {
        "operations": operations,
        "tflops_per_gpu": operations / world / layer["median"] * 1e-9,
        "layer_ms": layer,
        "dense_ms": spread(times["dense_" + name]),
        "dense_over_layer": spread([a / b for a, b in zip(times["dense_" + name], times[name])]),
    }


def bench_shape(place, name, args):
    sizes = Sizes(name, args.tokens, place.world)
    layer = Layer(place, sizes)
    sets = [Inputs(place, sizes, args.skew, place.rank, index) for index in range(NUM_SETS)]
    for inputs in sets:
        inputs.meet(place)
    errors, is_right = check(place, sizes, layer, args.skew, sets[0])
    result = {
        "shape": {"name": name, "experts": sizes.experts, "top_k": sizes.top_k, "hidden": sizes.hidden, "intermediate": sizes.inter,
                  "shared_intermediate": sizes.shared_inter, "tokens": sizes.tokens, "num_ranks": place.world, "skew": args.skew},
        "errors": errors,
        "is_right": is_right,
    }
    if place.is_cuda and is_right:
        result["waits_for_host"] = find_sync(layer, sets[0])
        times = measure(place, sizes, layer, sets, args.warm_up, args.repeat)
        result["forward"], result["backward"] = figures(sizes, place.world, times, False), figures(sizes, place.world, times, True)
    return result


def try_shape(place, name, args):
    """A shape that one process cannot run is a result, too; several processes cannot go on without each other."""
    begin = time.monotonic()
    if place.is_cuda:
        torch.cuda.reset_peak_memory_stats()
    try:
        with torch.no_grad():
            result = bench_shape(place, name, args)
        result["seconds"] = time.monotonic() - begin
        result["peak_bytes"] = torch.cuda.max_memory_reserved() if place.is_cuda else 0
        return result
    except LeftOut as reason:
        return {"shape": {"name": name}, "left_out": str(reason)}
    except RuntimeError as error:
        if place.world > 1:
            raise
        return {"shape": {"name": name}, "failed": str(error).splitlines()[0]}


# ---- saying ------------------------------------------------------------------------------------------------------------------


def machine(place):
    if not place.is_cuda:
        return {"device": "cpu", "torch": torch.__version__}
    fields = "name,driver_version,clocks.sm,clocks.mem,power.limit,temperature.gpu"
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
    smi = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip().splitlines()
    nccl = ".".join(str(part) for part in torch.cuda.nccl.version())
    return {"device": torch.cuda.get_device_name(), "nvidia_smi": {"fields": fields, "devices": smi}, "torch": torch.__version__,
            "cuda": torch.version.cuda, "nccl": nccl}


def print_result(result):
    if "left_out" in result:
        print(f"{result['shape']['name']:22s} left out: {result['left_out']}", flush=True)
        return
    if "failed" in result:
        print(f"{result['shape']['name']:22s} FAILED: {result['failed']}", flush=True)
        return
    verdict, errors = "checked" if result["is_right"] else "WRONG, not timed", result["errors"]
    line = f"{result['shape']['name']:22s} {verdict}: y {errors['y']['whole']:.1e}, dx {errors['dx']['whole']:.1e}"
    for name in ("forward", "backward"):
        if name in result:
            part = result[name]
            ms = part["layer_ms"]
            line += (f"; {name} {ms['median']:.3f} ms [{ms['least']:.3f} {ms['most']:.3f}] {part['tflops_per_gpu']:.0f} TFLOP/s/GPU, "
                     f"share of dense {part['dense_over_layer']['median']:.3f}")
    line += f"; {result['seconds']:.0f} s, {result['peak_bytes'] * 1e-9:.0f} GB"
    if result.get("waits_for_host"):
        line += "; WAITS FOR THE HOST: " + result["waits_for_host"]
    print(line, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", default="qwen3-30b", help="names joined by commas: " + ", ".join(SHAPES))
    parser.add_argument("--tokens", type=int, default=8192, help="of each rank")
    parser.add_argument("--skew", default="balanced", choices=["balanced", "zipf", "hot"])
    parser.add_argument("--repeat", type=int, default=30)
    parser.add_argument("--warm-up", type=int, default=10)
    parser.add_argument("--json", help="file for the results")
    parser.add_argument("--commit", default="", help="commit for the JSON")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"], help="cpu: checks only, times nothing")
    args = parser.parse_args()
    names = args.shape.split(",")
    if not set(names) <= set(SHAPES):
        parser.error(f"--shape is '{args.shape}': must be names out of {', '.join(SHAPES)}, joined by commas")
    place = Place(args.device)
    about = {
        "command": " ".join(sys.argv),
        "commit": args.commit,
        "machine": machine(place),
        "peer": "NCCL all-to-all + torch grouped GEMM, splits known beforehand, bf16 gradients added to fp32",
        "num_repeats": args.repeat,
        "num_warmups": args.warm_up,
        "results": [],
    }
    for name in names:
        result = try_shape(place, name, args)
        about["results"].append(result)
        if place.rank == 0:
            print_result(result)
        if place.rank == 0 and args.json:
            with open(args.json, "w", encoding="utf-8") as file:
                json.dump(about, file)
        if place.is_cuda:
            torch.cuda.empty_cache()
    if place.world > 1:
        dist.destroy_process_group()
    ran = [result for result in about["results"] if "left_out" not in result]
    return 0 if ran and all(result.get("is_right") and not result.get("waits_for_host") for result in ran) else 1


if __name__ == "__main__":
    sys.exit(main())
