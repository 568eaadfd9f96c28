"""One rank's slice of a Llama-70B-class model, and greedy decoding with it that a CUDA graph can capture."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import torch

from ..config import MIB

TENSOR_PARALLEL = 4
DELAY_US = 15.0  # what the emulated peers take to answer; the benchmarks measure 2 to 26
NUM_SEQUENCES = 16
PROMPT_TOKENS = 8
CACHE_TOKENS = 128  # a multiple of 8, as the attention kernel wants its mask
MAX_LAYERS = 16


def llama_config(num_layers: int, num_ranks: int = TENSOR_PARALLEL) -> Any:
    """Llama-70B's widths with the heads and the intermediate size of one of `num_ranks`, and a small vocabulary."""
    from transformers import LlamaConfig

    return LlamaConfig(
        num_hidden_layers=num_layers,
        hidden_size=8192,
        num_attention_heads=64 // num_ranks,
        num_key_value_heads=8 // num_ranks,
        head_dim=128,
        intermediate_size=28672 // num_ranks,
        vocab_size=8192,
        max_position_embeddings=CACHE_TOKENS,
    )


def layer_bytes(config: Any) -> int:
    """The weights of one decoder layer in bf16."""
    heads = 2 * config.num_attention_heads + 2 * config.num_key_value_heads
    return 2 * config.hidden_size * (heads * config.head_dim + 3 * config.intermediate_size)


def num_layers_that_fit() -> int:
    """How many layers the GPU's free memory holds, at most MAX_LAYERS; 0 when it holds no two."""
    free_bytes = torch.cuda.mem_get_info()[0]
    # A layer is made in place; the rest holds embeddings, two graphs' activations and the libraries' workspaces.
    fit = int((free_bytes - 1024 * MIB) // layer_bytes(llama_config(1)))
    return min(MAX_LAYERS, fit) if fit >= 2 else 0


def make_model(config: Any, device: torch.device | str) -> torch.nn.Module:
    """A bf16 model with random weights, made on `device`. Every row-parallel linear is followed by a collective."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa")
    for name, module in model.named_modules():
        if name.endswith(("o_proj", "down_proj")):
            module.register_forward_hook(_all_reduce)
    return model.eval().requires_grad_(False)


def _all_reduce(module: torch.nn.Module, args: tuple, output: torch.Tensor) -> None:
    torch.ops.dsv41.emulated_all_reduce(output, DELAY_US)


@contextmanager
def _capturable_attention() -> Any:
    # Left alone, torch may pick an attention kernel that builds its plan at the first call of a shape.
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
        yield


class Decoder:
    """Greedy decoding of several sequences at once. `step` keeps tokens, position and cache on the device."""

    def __init__(self, model: torch.nn.Module, num_sequences: int = 1) -> None:
        from transformers import StaticCache

        self.model = model
        device = next(model.parameters()).device
        self._cache = StaticCache(config=model.config, max_cache_len=CACHE_TOKENS)
        rows = torch.arange(num_sequences, device=device)[:, None]
        prompt = rows + torch.arange(17, 17 + PROMPT_TOKENS, device=device)
        with _capturable_attention():
            out = model(input_ids=prompt, past_key_values=self._cache, use_cache=True)
        self._first = out.logits[:, -1:].argmax(-1)
        self.token = self._first.clone()  # [num_sequences, 1], those to decode next

    def step(self) -> torch.Tensor:
        """One decode step, without a host synchronisation; returns the logits [num_sequences, vocabulary]."""
        with _capturable_attention():
            out = self.model(input_ids=self.token, past_key_values=self._cache, use_cache=True)
        self.token.copy_(out.logits[:, -1:].argmax(-1))
        return out.logits[:, -1]

    def rewind(self) -> None:
        """Back to the end of the prompt; what the cache holds past it is masked, then overwritten."""
        self.token.copy_(self._first)
        for layer in self._cache.layers:
            layer.cumulative_length.fill_(PROMPT_TOKENS)

    def decode(self, num_tokens: int, step: Callable[[], torch.Tensor]) -> tuple[list[int], torch.Tensor]:
        """Decodes from the prompts on with `step`, at most CACHE_TOKENS - PROMPT_TOKENS tokens a sequence.

        Returns the tokens, step by step, and the logits [num_tokens, num_sequences, vocabulary].
        """
        self.rewind()
        tokens, logits = [], []
        for _ in range(num_tokens):
            logits.append(step().clone())
            tokens.append(self.token.clone())
        return torch.cat(tokens).flatten().tolist(), torch.stack(logits)


class CapturedStep:
    """`decoder.step` as a CUDA graph. The graph stays readable for `read_graph`."""

    def __init__(self, decoder: Decoder) -> None:
        self.graph = torch.cuda.CUDAGraph(keep_graph=True)
        with torch.cuda.graph(self.graph):
            self._logits = decoder.step()
        self.graph.instantiate()

    def __call__(self) -> torch.Tensor:
        """Replays; returns the logits [num_sequences, vocabulary], which the next replay overwrites."""
        self.graph.replay()
        return self._logits
