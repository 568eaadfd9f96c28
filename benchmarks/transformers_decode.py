"""A real transformers Llama and a Qwen3-MoE, decoding in a CUDA graph with nothing of ours but `dsv41_l2pf.attach`.

The weights are one rank's slice, made from a config; behind each row-parallel projection, and behind the experts,
stands a collective whose peers answer late. `ours_auto` and `ours_tuned` are one graph, with other settings of its
windows.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from rich.progress import track

import dsv41_l2pf
from dsv41_l2pf.demo.gpu_model import CACHE_TOKENS, CapturedStep, Decoder, llama_config
from dsv41_l2pf.tune import DEFAULT_ROUNDS

from .arms import MODE, calibration, notes_of, tuning_notes
from .common import (
    Document,
    Goal,
    console,
    environment,
    finish,
    introduce,
    parser,
    require_cuda,
    row_table,
)
from .runs import AUTO, EMPTY, TUNED, null_of, ratio_of
from .timing import NULL, NUM_WARM_UPS, OFF, Timed, null_spread, row, time_in_turns

DELAYS_US = (5.0, 15.0)
NUM_TOKENS = 1
_TENSOR_PARALLEL = 4
_CHECKED_TOKENS = 32
# Every replay decodes one token further; the cache ends at CACHE_TOKENS.
_STEPS_BEFORE_REWIND = 64
_CACHE_STATE = (
    "off is the same model's graph from before `attach`; a step reads many times more than L2 holds, so every weight "
    "starts in DRAM; tokens and logits of 32 steps are the same, bit for bit, before anything is timed"
)


@dataclass(frozen=True)
class Model:
    """A transformers model. row_parallel: suffixes of the modules whose outputs the ranks sum."""

    name: str
    config: Callable[[], Any]
    row_parallel: tuple[str, ...]


def qwen3_moe_config(num_layers: int = 24) -> Any:
    """Qwen3-30B-A3B's widths with the heads and the expert width of one of four ranks, and a small vocabulary."""
    from transformers import Qwen3MoeConfig

    return Qwen3MoeConfig(
        num_hidden_layers=num_layers,
        hidden_size=2048,
        num_attention_heads=32 // _TENSOR_PARALLEL,
        num_key_value_heads=4 // _TENSOR_PARALLEL,
        head_dim=128,
        moe_intermediate_size=768 // _TENSOR_PARALLEL,
        num_experts=128,
        num_experts_per_tok=8,
        norm_topk_prob=True,
        vocab_size=8192,
        max_position_embeddings=CACHE_TOKENS,
    )


MODELS = {
    "llama": Model("Llama-70B class bf16 tp4", lambda: llama_config(16), ("o_proj", "down_proj")),
    "qwen3-moe": Model("Qwen3-MoE-30B class bf16 tp4", qwen3_moe_config, ("o_proj", "mlp")),
}


class Peers:
    """The other ranks: they answer every collective of a model `delay_us` late."""

    def __init__(self, model: torch.nn.Module, row_parallel: tuple[str, ...]) -> None:
        self.delay_us = 0.0
        for name, module in model.named_modules():
            if name.endswith(row_parallel):
                module.register_forward_hook(self._all_reduce)

    def _all_reduce(self, module: torch.nn.Module, args: tuple, output: torch.Tensor) -> None:
        torch.ops.dsv41.emulated_all_reduce(output, self.delay_us)


def make_model(config: Any, device: torch.device | str) -> torch.nn.Module:
    """A bf16 model with random weights, made on `device`, its router included: experts are really chosen."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa")
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            if parameter.dim() > 1:
                parameter.data.normal_(std=config.initializer_range)
    return model.eval().requires_grad_(False)


class Steps:
    """Replays of a model's graphs. All of them share one cache, which must not run over its end."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._left = 0

    def rewind(self) -> None:
        self._decoder.rewind()
        self._left = _STEPS_BEFORE_REWIND

    def replay_of(self, captured: CapturedStep) -> Callable[[], None]:
        def replay() -> None:
            if self._left == 0:
                self.rewind()
            self._left -= 1
            captured()

        return replay


def settings_of(signature: dict) -> list[tuple[int, int, str]]:
    """(collective_index, budget_bytes, form) of every window."""
    return [(window["collective_index"], window["budget_bytes"], window["form"]) for window in signature["windows"]]


def signature_of(prefetcher: dsv41_l2pf.Prefetcher, num_tokens: int = NUM_TOKENS) -> dict:
    """The decode signature of `num_tokens` tokens. Raises RuntimeError when there is none with a window."""
    status = prefetcher.status()
    for signature in status["signatures"]:
        if (signature["num_tokens"], signature["mode"]) == (num_tokens, MODE) and signature["windows"]:
            return signature
    reasons = [status["reason"], *(signature["reason"] for signature in status["signatures"])]
    raise RuntimeError("attach learned no window: " + ("; ".join(filter(None, reasons)) or "no decode step was seen"))


class Attached:
    """The captured step of an attached model, and its windows' settings."""

    def __init__(self, decoder: Decoder, capture: Callable[[Decoder], Callable] = CapturedStep) -> None:
        """capture: makes the step to replay."""
        self._decoder = decoder
        self._num_tokens = decoder.token.numel()
        self.prefetcher = dsv41_l2pf.attach(decoder.model, dsv41_l2pf.Config(), mode=MODE)
        try:
            warm_up(decoder)
            self.captured = capture(decoder)
            self.auto = settings_of(self.signature())
        except BaseException:
            self.prefetcher.detach()
            raise

    def signature(self) -> dict:
        return signature_of(self.prefetcher, self._num_tokens)

    def apply(self, settings: list[tuple[int, int, str]]) -> None:
        for index, budget_bytes, form in settings:
            self.prefetcher.set_window(
                index,
                num_tokens=self._num_tokens,
                mode=MODE,
                budget_bytes=budget_bytes,
                form=form,
                model=self._decoder.model,
            )

    def switch_off(self) -> None:
        self.apply([(index, 0, "") for index, _, _ in self.auto])


def warm_up(decoder: Decoder) -> None:
    """Eager steps from the prompt on: libraries make their handles outside the capture, and ours learns."""
    decoder.rewind()
    for _ in range(NUM_WARM_UPS):
        decoder.step()
        if decoder.token.is_cuda:
            torch.cuda.synchronize()


def require_same_tokens(name: str, decoder: Decoder, captured: CapturedStep, reference: CapturedStep) -> None:
    """Raises RuntimeError unless both decode the same tokens from the same logits, bit for bit."""
    expected_tokens, expected_logits = decoder.decode(_CHECKED_TOKENS, reference)
    tokens, logits = decoder.decode(_CHECKED_TOKENS, captured)
    if tokens != expected_tokens or not torch.equal(logits, expected_logits):
        raise RuntimeError(f"{name}: tokens or logits differ from off: nothing was timed")


def measure(
    case: str, decoder: Decoder, args: argparse.Namespace
) -> tuple[list[dict[str, Any]], dict[str, list[float]]]:
    """The rows of one model behind one peer delay, and the times they come from."""
    warm_up(decoder)
    off, null = CapturedStep(decoder), CapturedStep(decoder)
    require_same_tokens(f"{case}, {NULL}", decoder, null, off)
    ours, steps = Attached(decoder), Steps(decoder)
    try:
        require_same_tokens(f"{case}, {AUTO}", decoder, ours.captured, off)
        auto_notes = notes_of(ours.signature())
        replay = steps.replay_of(ours.captured)
        tuning = ours.prefetcher.tune(
            replay, baseline=steps.replay_of(off), rounds=args.tune_rounds, progress=False
        )
        tuned = settings_of(ours.signature())
        tuned_notes = {**notes_of(ours.signature()), "tune": tuning_notes(tuning)}
        require_same_tokens(f"{case}, {TUNED}", decoder, ours.captured, off)

        def prepare(set_windows: Callable[[], None]) -> Callable[[], None]:
            def run() -> None:
                set_windows()
                steps.rewind()

            return run

        arms = [
            Timed(OFF, steps.replay_of(off), steps.rewind),
            Timed(NULL, steps.replay_of(null), steps.rewind),
            Timed(EMPTY, replay, prepare(ours.switch_off)),
            Timed(AUTO, replay, prepare(lambda: ours.apply(ours.auto)), auto_notes),
            Timed(TUNED, replay, prepare(lambda: ours.apply(tuned)), tuned_notes),
        ]
        times = time_in_turns(arms, args.rounds)
    finally:
        ours.prefetcher.detach()
    return [row(case, arm, times) for arm in arms], times


def goals_of(case: str, rows: list[dict[str, Any]]) -> list[Goal]:
    null = null_of(rows, case)
    return [Goal(f"{case}: never slower, {TUNED}", ratio_of(rows, case, TUNED), 1.0, slack=null)]


def arguments() -> argparse.Namespace:
    found = parser("transformers_decode", __doc__.splitlines()[0])
    found.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    found.add_argument("--delays", type=float, nargs="+", default=list(DELAYS_US), help="peer delays in us")
    found.add_argument("--rounds", type=int, default=25, help="rounds in which every arm has its turn")
    found.add_argument("--tune-rounds", type=int, default=DEFAULT_ROUNDS, help="rounds of tune")
    args = found.parse_args()
    if args.quick:
        args.delays, args.rounds = args.delays[:1], 4
    return args


def main() -> int:
    args = arguments()
    require_cuda()
    document = Document("transformers", environment(args.commit))
    introduce("transformers", document.record, _CACHE_STATE)
    document.extra["calibration"] = calibration()
    for chosen in args.models:
        model = MODELS[chosen]
        with document.case(model.name), torch.inference_mode():
            measure_model(document, model, args)
        document.write(args.out)
    return finish(document, args)


def measure_model(document: Document, model: Model, args: argparse.Namespace) -> None:
    """Adds the rows and goals of every peer delay."""
    module = make_model(model.config(), "cuda")
    peers, decoder = Peers(module, model.row_parallel), Decoder(module)
    for delay_us in track(args.delays, description=model.name, console=console):
        case = f"{model.name}, M={NUM_TOKENS}, {delay_us:g} us"
        if document.elapsed_s > args.deadline_s:
            document.skipped.append(case)
            continue
        peers.delay_us = delay_us
        with document.case(case):
            rows, times = measure(case, decoder, args)
            document.rows += [{**entry, "model": model.name, "delay_us": delay_us} for entry in rows]
            document.null_spreads.append(null_spread(times))
            document.goals += goals_of(case, rows)
            shown = {"arm": "", "value": ".1f", "ratio_to_off": ".4f", "ratio_low": ".4f", "ratio_high": ".4f"}
            console.print(row_table(f"{case}: step in us", rows, shown | {"planned_mib": ".1f", "num_windows_on": "d"}))


if __name__ == "__main__":
    raise SystemExit(main())
