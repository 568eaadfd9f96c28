"""Transformers models built from a config and sharded over two ranks by their own tp_plan."""

from __future__ import annotations

import torch

NUM_TOKENS = 4
_SIZES = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "head_dim": 16,
}
LLAMA, QWEN3, QWEN3_MOE, DEEPSEEK_V3 = "Llama", "Qwen3", "Qwen3Moe", "DeepseekV3"

_OTHER_SIZES = {
    QWEN3_MOE: {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    DEEPSEEK_V3: {
        "num_key_value_heads": 4,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 2,
        "topk_group": 1,
        "n_shared_experts": 1,
        "moe_intermediate_size": 32,
        "first_k_dense_replace": 1,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 16,
        "head_dim": 8,
    },
}


def build(family: str, **sizes: int) -> torch.nn.Module:
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**{**_SIZES, **_OTHER_SIZES.get(family, {}), **sizes})
    return getattr(transformers, f"{family}ForCausalLM")(config).eval().requires_grad_(False)


def shard(model: torch.nn.Module) -> torch.nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from transformers.distributed.tensor_parallel import apply_tensor_parallelism

    return apply_tensor_parallelism(model, init_device_mesh("cpu", (2,)))


def remove_backward_hooks(model: torch.nn.Module) -> None:
    """transformers puts them on norms inside the attention; Dynamo ends a graph at each, also without a backward."""
    for module in model.modules():
        module._backward_hooks.clear()
        module._backward_pre_hooks.clear()


def logits(model: torch.nn.Module) -> torch.Tensor:
    return model(input_ids=torch.arange(NUM_TOKENS)[None], use_cache=False).logits


def windows(family: str, num_layers: int = 2) -> list[tuple[str, ...]]:
    """The weights read after each all-reduce of one forward, in reading order."""
    attention = ["q_proj", "q_norm", "k_proj", "k_norm", "v_proj", "o_proj"]
    if family == LLAMA:
        attention = [name for name in attention if "norm" not in name]
    mlp = ["gate"] if family == QWEN3_MOE else ["gate_proj", "up_proj", "down_proj"]
    found = []
    for i in range(num_layers):
        layer = f"model.layers.{i}"
        found.append((f"{layer}.input_layernorm.weight", *(f"{layer}.self_attn.{name}.weight" for name in attention)))
        found.append((f"{layer}.post_attention_layernorm.weight", *(f"{layer}.mlp.{name}.weight" for name in mlp)))
    return [*found[1:], ("model.norm.weight", "lm_head.weight")]
