"""One start of a real SGLang on one GPU: the plugin loaded by SGLang itself, decode steps timed, one line of JSON.

A dummy-weight Llama of one tensor-parallel rank's shapes runs at TP = 1, where SGLang issues no collective; so the
emulated one stands behind every `RowParallelLinear`, hooked as SGLang's own collectives are. DSV41_L2_PREFETCH decides,
as for any user, whether the plugin does anything: tools/sglang_h200.sh starts this with and without it in turns.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Llama-3-70B on four ranks: heads, key-value heads and the inner size are a rank's share.
TP4_RANK = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 8192,
    "intermediate_size": 7168,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "vocab_size": 32064,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
    "rope_theta": 500000.0,
}
_NUM_WARM_UPS = 1
_PROMPT_TOKENS = 32
_MAX_STEPS_TO_TUNE = 4000
PLANNED, WINDOWS_OFF, TUNED = "as planned", "windows off", "tuned"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=16, help="of 80")
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--delay-us", type=float, default=5.0, help="after which the emulated peers answer")
    parser.add_argument("--steps", type=int, default=64, help="decode steps a block")
    parser.add_argument("--blocks", type=int, default=8, help="timed blocks; with the plugin, of each setting")
    parser.add_argument("--quantization", help="of the weights, for example fp8; default: none, bfloat16")
    return parser.parse_args()


def _put_collectives_behind_row_parallel_linears(delay_us: float, session: Any) -> None:
    import torch
    from sglang.srt.layers.linear import RowParallelLinear

    def all_reduce(tensor: torch.Tensor) -> torch.Tensor:
        torch.ops.dsv41.emulated_all_reduce(tensor, delay_us)
        return tensor

    if session is not None:
        all_reduce = session.collective(all_reduce, "all_reduce", lambda args, kwargs: args[0])
    forward = RowParallelLinear.forward

    @functools.wraps(forward)
    def with_collective(self: Any, *args: Any, **kwargs: Any) -> tuple:
        output, bias = forward(self, *args, **kwargs)
        return all_reduce(output), bias

    RowParallelLinear.forward = with_collective


class _Replays:
    """Times each replay of a CUDA graph by events, so that the host's share of a step is not in it."""

    def __init__(self) -> None:
        self.last: Callable[[], None] | None = None  # replays the graph that was replayed last
        self._events: list[tuple[Any, Any]] = []

    def watch(self) -> None:
        import torch

        original = torch.cuda.CUDAGraph.replay

        @functools.wraps(original)
        def replay(graph: Any) -> None:
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            original(graph)
            end.record()
            self._events.append((begin, end))
            self.last = functools.partial(original, graph)

        torch.cuda.CUDAGraph.replay = replay

    def take_us(self) -> list[float]:
        """What the replays since the last call took. They must have ended."""
        taken = [1e3 * begin.elapsed_time(end) for begin, end in self._events]
        self._events.clear()
        return taken


class _Decoder:
    """Greedy decoding from one fixed prompt through SGLang's own model runner."""

    def __init__(self, one_batch: Any, bench: Any, batch_size: int, replays: _Replays) -> None:
        self._one_batch, self._bench, self._batch_size = one_batch, bench, batch_size
        self.model, self.replays = bench.torch_runner.model, replays

    def steps(self, num_steps: int) -> tuple[list[list[int]], float, float]:
        """The tokens of every step, [steps][batch]; the median us of a step, and of its graph's replay alone."""
        prompt = [list(range(17 + index, 17 + index + _PROMPT_TOKENS)) for index in range(self._batch_size)]
        self._bench.clear()
        requests = self._one_batch.prepare_synthetic_inputs_for_latency_test(self._batch_size, _PROMPT_TOKENS, prompt)
        token, _, batch = self._bench.extend(requests)
        self._bench.synchronize()
        self.replays.take_us()
        tokens, step_us = [], []
        for _ in range(num_steps):
            begin = time.perf_counter()
            token, _ = self._bench.decode(token, batch)
            self._bench.synchronize()
            step_us.append((time.perf_counter() - begin) * 1e6)
            tokens.append(token.tolist())
        return tokens, statistics.median(step_us), statistics.median(self.replays.take_us())


class _Windows:
    """The decode signature's windows, and the ways in which they are set."""

    def __init__(self, decoder: _Decoder, session: Any, batch_size: int) -> None:
        self._prefetcher = session.prefetcher
        signatures = self._prefetcher.status()["signatures"]
        fitting = [s for s in signatures if s["num_tokens"] == batch_size and s["mode"] == "decode"]
        signature = max(fitting, key=lambda s: s["num_windows"], default={"windows": []})
        if not signature["windows"]:
            raise RuntimeError(f"expected windows for decode steps of {batch_size} tokens, got {signatures}")
        self._key = {"num_tokens": batch_size, "mode": "decode", "model": decoder.model}
        planned = {w["collective_index"]: (w["budget_bytes"], w["form"]) for w in signature["windows"]}
        begin = time.perf_counter()
        self.tuning = self._prefetcher.tune(decoder.replays.last, num_tokens=batch_size, mode="decode", progress=False)
        self.tune_s = time.perf_counter() - begin
        self.settings = {
            PLANNED: planned,
            WINDOWS_OFF: {index: (0, form) for index, (_, form) in planned.items()},
            TUNED: {w.collective_index: (w.budget_bytes, w.form) for w in self.tuning.windows},
        }

    def set(self, name: str) -> None:
        for index, (num_bytes, form) in self.settings[name].items():
            self._prefetcher.set_window(index, budget_bytes=num_bytes, form=form, **self._key)



def _tune_while_serving(decoder: _Decoder, session: Any, arguments: argparse.Namespace) -> tuple[Any, float]:
    """Decodes until the plugin, asked for it by DSV41_L2_PREFETCH_TUNE=1, has decided; its tuning, and the seconds."""
    begin = time.perf_counter()
    for _ in range(_MAX_STEPS_TO_TUNE // arguments.steps):
        decoder.steps(arguments.steps)
        tunings = [t for t in session.prefetcher.tunings.all() if t.num_tokens == arguments.batch_size]
        if tunings:
            return tunings[0], time.perf_counter() - begin
    raise RuntimeError(f"expected a tuning within {_MAX_STEPS_TO_TUNE} decode steps, got none")


def _report(session: Any, tuning: Any, seconds: float) -> dict:
    return {
        "tuning": {"ratio": tuning.ratio, "step_us": tuning.step_us, "noise": tuning.noise, "num_off": tuning.num_off,
                   "reason": tuning.reason, "seconds": seconds, "measured": tuning.measured},
        "signatures": [
            {name: s[name] for name in ("num_tokens", "mode", "state", "reason", "num_collectives", "num_windows",
                                        "num_launched", "planned_bytes")}
            for s in session.prefetcher.status()["signatures"]
        ],
    }  # fmt: skip


def _measure(decoder: _Decoder, session: Any, arguments: argparse.Namespace) -> dict:
    for _ in range(_NUM_WARM_UPS):
        tokens, _, _ = decoder.steps(arguments.steps)
    windows, report = None, {}
    if session is not None and session.config.tune:
        report = _report(session, *_tune_while_serving(decoder, session, arguments))
    elif session is not None:
        windows = _Windows(decoder, session, arguments.batch_size)
        report = _report(session, windows.tuning, windows.tune_s)
    settings = (PLANNED, WINDOWS_OFF, TUNED) if windows else (PLANNED,)
    step_us: dict[str, list[float]] = {name: [] for name in settings}
    graph_us: dict[str, list[float]] = {name: [] for name in settings}
    equal = True
    for _ in range(arguments.blocks):
        for name in settings:
            if windows:
                windows.set(name)
            block_tokens, block_step_us, block_graph_us = decoder.steps(arguments.steps)
            equal = equal and block_tokens == tokens
            step_us[name].append(block_step_us)
            graph_us[name].append(block_graph_us)
    return {
        "tokens": hashlib.sha256(json.dumps(tokens).encode()).hexdigest()[:16],
        "tokens_equal_in_every_block": equal,
        "step_us": step_us,
        "graph_us": graph_us,
        **report,
    }


@contextmanager
def _stream_of_a_server() -> Iterator[None]:
    """A stream of its own, as the scheduler's `forward_stream` is; one_batch replays on the default stream.

    The default stream replays a graph without branches faster than others do, so it would flatter a graph without us.
    """
    import torch

    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        yield
    torch.cuda.synchronize()


def _latency_test(arguments: argparse.Namespace) -> Any:
    def latency_test(server_args: Any, port_args: Any, bench_args: Any, gpu_id: int, tp_rank: int) -> None:
        from sglang.benchmark import one_batch
        from sglang.srt.plugins import load_plugins

        from dsv41_l2pf.integrations import sglang

        for initialise in ("initialize_moe_config", "initialize_fp8_gemm_config", "initialize_fp4_gemm_config"):
            getattr(one_batch, initialise)(server_args)
        load_plugins()
        session = sglang.session()
        replays = _Replays()
        replays.watch()
        _put_collectives_behind_row_parallel_linears(arguments.delay_us, session)
        one_batch.configure_logger(server_args, prefix=" TP0")
        bench, _ = one_batch.load_model(server_args, port_args, gpu_id, tp_rank)
        with _stream_of_a_server():
            result = _measure(_Decoder(one_batch, bench, arguments.batch_size, replays), session, arguments)
        environment = {name: value for name, value in os.environ.items() if name.startswith("DSV41_")}
        print(json.dumps({**vars(arguments), "plugin": session is not None, "environment": environment, **result}))

    return latency_test


def main() -> None:
    arguments = _arguments()
    import dsv41_l2pf  # noqa: F401  (loads the operators, the emulated collective among them)
    from sglang.benchmark import one_batch

    one_batch.get_tokenizer = lambda *args, **kwargs: None
    one_batch.latency_test = _latency_test(arguments)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps({**TP4_RANK, "num_hidden_layers": arguments.layers}))
        sys.argv = [
            "one_batch",
            *("--model-path", folder, "--load-format", "dummy", "--grammar-backend", "none"),
            "--disable-prefill-cuda-graph",  # a minute of capture, and decode is what is timed
            *("--attention-backend", "triton", "--sampling-backend", "pytorch", "--mem-fraction-static", "0.5"),
            *("--batch-size", str(arguments.batch_size), "--cuda-graph-bs-decode", str(arguments.batch_size)),
            *(("--quantization", arguments.quantization) if arguments.quantization else ()),
        ]
        one_batch.cli_main()


if __name__ == "__main__":
    main()
