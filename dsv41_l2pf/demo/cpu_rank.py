"""One rank of the CPU demo: loads its slice of the model, decodes with and without prefetching, and times both."""

from __future__ import annotations

import faulthandler
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from .. import attach
from ..report import weight_names
from .arms import Arm, interleave

NUM_RANKS = 2
PROMPT_TOKENS = 8
DECODE_TOKENS = 24
NUM_ROUNDS = 8
STEPS_PER_BLOCK = 4
OFF, NULL, EMPTY, ON = "off", "off, again", "on, windows off", "on"
ARMS = (OFF, NULL, EMPTY, ON)
MODE, NUM_TOKENS = "decode", 1


def llama_config() -> Any:
    """A Llama small enough for two CPU cores and wide enough that its weights dwarf its activations."""
    from transformers import LlamaConfig

    return LlamaConfig(
        num_hidden_layers=4,
        hidden_size=1024,
        num_attention_heads=16,
        num_key_value_heads=8,
        intermediate_size=2816,
        vocab_size=4096,
        max_position_embeddings=256,
        dtype=torch.bfloat16,
    )


def _join_group(rank: int, folder: Path) -> None:
    os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(rank)  # transformers asks for them
    os.environ["WORLD_SIZE"] = str(NUM_RANKS)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # a sandbox's host name may not resolve
    torch.set_num_threads(1)
    # A file, so that there is no port to lose a race for.
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=NUM_RANKS)


def _load(folder: Path) -> torch.nn.Module:
    from transformers import AutoModelForCausalLM
    from transformers.distributed import DistributedConfig
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    plan = DistributedConfig(tp_plan="auto")
    return AutoModelForCausalLM.from_pretrained(folder / "model", distributed_config=plan, dtype=torch.bfloat16).eval()


class Decoder:
    """Greedy decoding with a KV cache, from one fixed prompt."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self.prompt = torch.arange(17, 17 + PROMPT_TOKENS)[None]
        out = model(input_ids=self.prompt, use_cache=True)
        self._cache = out.past_key_values
        self._first = out.logits[:, -1:].argmax(-1)

    def steps(self, num_steps: int) -> tuple[list[int], torch.Tensor, list[float]]:
        """Decodes from the prompt on. Returns tokens, logits [num_steps, vocabulary] and the ms of every step."""
        self._cache.crop(PROMPT_TOKENS)
        token, tokens, logits, step_ms = self._first, [], [], []
        for _ in range(num_steps):
            start = time.perf_counter()
            out = self.model(input_ids=token, past_key_values=self._cache, use_cache=True)
            token = out.logits[:, -1:].argmax(-1)
            step_ms.append((time.perf_counter() - start) * 1e3)
            tokens.append(int(token))
            logits.append(out.logits[0, -1])
        return tokens, torch.stack(logits), step_ms


def decode(rank: int, folder: Path, reports: Any) -> None:
    """Runs rank `rank`; puts ("stage", text), ("block",) and ("result", rank, dict) on `reports`; ends the process."""
    warnings.simplefilter("ignore")
    faulthandler.enable()  # a rank that dies of a signal says where
    try:
        _join_group(rank, folder)
        reports.put(("stage", f"rank {rank}: loading its slice"))
        model = _load(folder)
        with torch.inference_mode():
            reports.put(("result", rank, _measure(model, reports)))
        dist.barrier()
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    _end_process(reports)


def _end_process(reports: Any) -> None:
    """Ends a rank that has reported. Interpreter and static destructors are skipped: gloo's and the model loader's
    threads may outlive the state that those tear down."""
    reports.close()
    reports.join_thread()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _measure(model: torch.nn.Module, reports: Any) -> dict:
    decoder = Decoder(model)
    reports.put(("stage", "decoding without the prefetcher"))
    tokens_off, logits_off, _ = decoder.steps(DECODE_TOKENS)

    prefetcher = attach(model, mode=MODE)
    hook = model.forward
    reports.put(("stage", "decoding with the prefetcher: the first step learns"))
    tokens_on, logits_on, _ = decoder.steps(DECODE_TOKENS)
    status = prefetcher.status()
    signature = next((s for s in status["signatures"] if s["num_tokens"] == NUM_TOKENS), None)
    result = {
        "status": status,
        "signature": signature,
        "names": weight_names(prefetcher, signature) if signature else {},
        "tokens_off": tokens_off,
        "tokens_on": tokens_on,
        "logits_equal": torch.equal(logits_off, logits_on),
        "arms": {},
    }

    def unhook() -> None:
        model.__dict__.pop("forward", None)

    def hook_with(budget_bytes: int) -> None:
        model.forward = hook
        for window in signature["windows"]:
            index = window["collective_index"]
            prefetcher.set_window(index, num_tokens=NUM_TOKENS, mode=MODE, budget_bytes=budget_bytes)

    if signature and signature["windows"]:
        reports.put(("stage", "timing steps, off and on in turns"))
        arms = [Arm(OFF, unhook), Arm(NULL, unhook), Arm(EMPTY, lambda: hook_with(0)), Arm(ON, lambda: hook_with(-1))]
        block = lambda: decoder.steps(STEPS_PER_BLOCK)[2]  # noqa: E731
        result["arms"] = interleave(arms, block, NUM_ROUNDS, lambda: reports.put(("block",)))
        model.forward = hook
    prefetcher.detach()
    return result
