"""Stands in for vLLM's rotary kernel, which SGLang's rotary embedding imports where there is neither a GPU nor AMX."""

import torch


def rotary_embedding(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    head_size: int,
    cos_sin_cache: torch.Tensor,
    is_neox: bool,
) -> None:
    """Rotates `query` and `key`, both [tokens, heads * head_size], in place. Only the neox layout."""
    assert is_neox
    cos, sin = cos_sin_cache[positions][:, None].to(query.dtype).chunk(2, dim=-1)
    for tensor in (query, key):
        heads = tensor.view(tensor.shape[0], -1, head_size)
        first, second = heads.chunk(2, dim=-1)
        heads.copy_(torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1))
