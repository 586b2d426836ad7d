#!/usr/bin/env python3
"""Makes the golden layers: one tiny MoE layer of each family, with outputs computed by the `transformers` package itself.

usage: make_golden.py OUT.tar

Needs torch, transformers and safetensors; runs on the CPU in a few seconds. For each family it builds a one-layer model, fills it with
random bf16 weights, and writes
  <family>/layer.safetensors        the layer's tensors under the names that save_pretrained gives them in a checkpoint
  <family>/layer_fused.safetensors  for two families: the module's own state_dict (experts as 3-D tensors)
  <family>/config.json              the config as save_pretrained writes it
  <family>/io.safetensors           hidden_states bf16 [T,H], output fp32 [T,H] and topk_ids int64, topk_weights fp32 [T,K], all from the
                                    module run in float64 on the very same bf16 weights; routes ordered by descending choosing score.
                                    grad_output bf16, and torch's gradients for it with the router's weights held constant:
                                    grad_hidden_states fp32 [T,H], grad_topk_weights fp32 [T,K], and grad_shared_weights fp32 [T].
A family that fails is named and left out; the others are still written, and the exit status says so.
"""
import json
import os
import sys
import tarfile
import tempfile
import traceback

import safetensors
import safetensors.torch
import torch
import transformers

# Attention is never run; it only has to be constructible.
ATTENTION = dict(vocab_size=32, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
                 pad_token_id=0, bos_token_id=1, eos_token_id=2)

# T, H, I, Is, E, K differ inside each family: equal values would hide a mix-up.
FAMILIES = {
    "qwen3_moe": dict(
        classes=("Qwen3MoeConfig", "Qwen3MoeForCausalLM"), tokens=40, fused=True,
        config=dict(ATTENTION, hidden_size=64, intermediate_size=96, moe_intermediate_size=48, num_experts=16, num_experts_per_tok=4,
                    head_dim=16, norm_topk_prob=True)),
    "qwen2_moe": dict(
        classes=("Qwen2MoeConfig", "Qwen2MoeForCausalLM"), tokens=37,
        config=dict(ATTENTION, hidden_size=72, intermediate_size=96, moe_intermediate_size=40, shared_expert_intermediate_size=56,
                    num_experts=12, num_experts_per_tok=3, norm_topk_prob=False)),
    "mixtral": dict(
        classes=("MixtralConfig", "MixtralForCausalLM"), tokens=41, fused=True,
        config=dict(ATTENTION, hidden_size=64, intermediate_size=56, num_local_experts=8, num_experts_per_tok=2)),
    "deepseek_v3": dict(
        classes=("DeepseekV3Config", "DeepseekV3ForCausalLM"), tokens=33,
        config=dict(ATTENTION, num_key_value_heads=4, hidden_size=80, intermediate_size=160, moe_intermediate_size=48, n_shared_experts=2,
                    n_routed_experts=16, n_group=4, topk_group=2, num_experts_per_tok=3, routed_scaling_factor=2.5, norm_topk_prob=True,
                    first_k_dense_replace=0, kv_lora_rank=8, q_lora_rank=8, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8)),
    "olmoe": dict(
        classes=("OlmoeConfig", "OlmoeForCausalLM"), tokens=39,
        config=dict(ATTENTION, hidden_size=56, intermediate_size=40, num_experts=10, num_experts_per_tok=4, norm_topk_prob=False)),
    "glm4_moe": dict(
        classes=("Glm4MoeConfig", "Glm4MoeForCausalLM"), tokens=36,
        config=dict(ATTENTION, hidden_size=64, intermediate_size=96, moe_intermediate_size=40, n_shared_experts=3, n_routed_experts=12,
                    n_group=1, topk_group=1, num_experts_per_tok=5, routed_scaling_factor=1.5, norm_topk_prob=True, first_k_dense_replace=0,
                    head_dim=16)),
    # Gates are made large enough that some pass the clamp of 7.
    "gpt_oss": dict(
        classes=("GptOssConfig", "GptOssForCausalLM"), tokens=43, gain=2.5,
        config=dict(ATTENTION, hidden_size=88, intermediate_size=72, num_local_experts=8, num_experts_per_tok=3, head_dim=16)),
}


def build_model(classes, config_values):
    config = getattr(transformers, classes[0])(**config_values)
    model_class = getattr(transformers, classes[1])
    model = model_class._from_config(config, experts_implementation="eager")
    if model.config._experts_implementation != "eager":
        raise RuntimeError(f"experts implementation is {model.config._experts_implementation!r}")
    return model


def fill(model, generator, gain):
    """Normal weights with the variance that keeps activations near 1; expert biases (gpt-oss) zero, router biases not."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("gate_up_proj_bias", "down_proj_bias")):
                parameter.zero_()
                continue
            scale = 0.3 if parameter.dim() == 1 else gain * parameter.shape[-1] ** -0.5
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
    model.to(torch.bfloat16)
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.data = torch.randn(buffer.shape, generator=generator, dtype=torch.float32) * 0.1


def checkpoint_tensors(model, folder):
    """The tensors of the only layer's MoE block, named and shaped as save_pretrained stores them."""
    model.save_pretrained(folder)
    tensors = safetensors.torch.load_file(os.path.join(folder, "model.safetensors"))
    picked = {name: value.contiguous() for name, value in tensors.items() if ".mlp." in name or ".block_sparse_moe." in name}
    if not picked:
        raise RuntimeError(f"no MoE tensors among {sorted(tensors)[:20]}")
    return picked


def route(block, hidden):
    """ids, weights and choosing scores of the block's own router, in descending order of the choosing score, and the smallest gap."""
    router = block.gate if hasattr(block, "gate") else block.router
    logits, weights, ids = router(hidden)
    if hasattr(router, "e_score_correction_bias"):
        score = logits.sigmoid() + router.e_score_correction_bias
        groups = router.num_group
        per_group = score.view(-1, groups, score.shape[1] // groups)
        kept = per_group.topk(2, dim=-1)[0].sum(-1).topk(router.topk_group, dim=-1)[1]
        mask = torch.zeros(score.shape[0], groups).scatter_(1, kept, 1.0).bool().unsqueeze(-1).expand_as(per_group).reshape(score.shape)
        score = score.masked_fill(~mask, float("-inf"))
    else:
        score = logits
    chosen, order = score.gather(1, ids).sort(dim=1, descending=True)
    ranked = score.sort(dim=1, descending=True)[0]
    width = min(ids.shape[1] + 1, ranked.shape[1])
    gap = (ranked[:, : width - 1] - ranked[:, 1:width]).min().item()
    if not torch.equal(chosen, ranked[:, : ids.shape[1]]):
        raise RuntimeError("the router's ids are not the best by choosing score")
    return ids.gather(1, order), weights.gather(1, order), gap


def expert_path(block, hidden, ids, weights, shared_weights):
    out = block.experts(hidden, ids, weights)
    if shared_weights is not None:
        out = out + shared_weights.unsqueeze(1) * block.shared_expert(hidden)
    elif hasattr(block, "shared_experts"):
        out = out + block.shared_experts(hidden)
    return out


def io_tensors(block, hidden_size, tokens, generator):
    hidden = torch.randn(tokens, hidden_size, generator=generator).to(torch.bfloat16)
    grad_output = torch.randn(tokens, hidden_size, generator=generator).to(torch.bfloat16)
    block = block.to(torch.float64).eval()
    x = hidden.double()
    with torch.no_grad():
        output = block(x.unsqueeze(0))
        output = (output[0] if isinstance(output, tuple) else output).reshape(tokens, hidden_size)
        ids, weights, gap = route(block, x)
        shared = torch.sigmoid(block.shared_expert_gate(x)).squeeze(1) if hasattr(block, "shared_expert_gate") else None
    x = x.requires_grad_(True)
    weights = weights.double().requires_grad_(True)
    if shared is not None:
        shared = shared.requires_grad_(True)
    again = expert_path(block, x, ids, weights, shared)
    difference = (again.detach() - output).abs().max().item()
    if not difference < 1e-6:
        raise RuntimeError(f"the block and its parts differ by {difference}")
    again.backward(grad_output.double())
    tensors = dict(hidden_states=hidden, output=output.float(), topk_ids=ids.to(torch.int64), topk_weights=weights.detach().float(),
                   grad_output=grad_output, grad_hidden_states=x.grad.float(), grad_topk_weights=weights.grad.float())
    if shared is not None:
        tensors["grad_shared_weights"] = shared.grad.float()
    print(f"   smallest gap of neighbouring choosing scores {gap:.3g}; |output| {output.abs().mean():.3g}; parts differ {difference:.1e}")
    return {name: value.contiguous() for name, value in tensors.items()}


def make_family(name, family, index, folder):
    generator = torch.Generator().manual_seed(20 + index)
    model = build_model(family["classes"], family["config"])
    fill(model, generator, family.get("gain", 1.0))
    os.makedirs(os.path.join(folder, name))
    with tempfile.TemporaryDirectory() as saved:
        tensors = checkpoint_tensors(model, saved)
        with open(os.path.join(saved, "config.json")) as source, open(os.path.join(folder, name, "config.json"), "w") as out:
            json.dump(json.load(source), out, indent=1, sort_keys=True)
    about = {"about": f"random {name} layer, named as in a checkpoint of transformers {transformers.__version__}"}
    safetensors.torch.save_file(tensors, os.path.join(folder, name, "layer.safetensors"), metadata=about)
    for tensor in sorted(tensors)[:3] + sorted(tensors)[-4:]:
        print(f"   {tensor} {tensors[tensor].dtype} {list(tensors[tensor].shape)}")
    block = model.model.layers[0].mlp
    if family.get("fused"):
        fused = {"model.layers.0.mlp." + key: value.detach().contiguous() for key, value in block.state_dict().items()}
        safetensors.torch.save_file(fused, os.path.join(folder, name, "layer_fused.safetensors"), metadata=about)
        print("   fused:", {key: list(value.shape) for key, value in fused.items()})
    versions = f"transformers {transformers.__version__}, torch {torch.__version__}"
    about = {"about": f"inputs, outputs and gradients of {name} in float64 by {versions}"}
    tensors = io_tensors(block, family["config"]["hidden_size"], family["tokens"], generator)
    safetensors.torch.save_file(tensors, os.path.join(folder, name, "io.safetensors"), metadata=about)


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: make_golden.py OUT.tar")
    print("python", sys.version.split()[0], "torch", torch.__version__, "transformers", transformers.__version__, "safetensors",
          safetensors.__version__)
    torch.set_num_threads(2)
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        for index, (name, family) in enumerate(FAMILIES.items()):
            print(name, flush=True)
            try:
                make_family(name, family, index, folder)
            except Exception:
                failed.append(name)
                traceback.print_exc()
        with tarfile.open(sys.argv[1], "w") as tar:
            for name in sorted(os.listdir(folder)):
                tar.add(os.path.join(folder, name), arcname=name)
    print("failed:", failed if failed else "none", "bytes:", os.path.getsize(sys.argv[1]))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
