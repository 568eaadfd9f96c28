"""What benchmarks/ measures: shapes, windows, rivals, models, and each case from capture to goals, without a GPU."""

import argparse
import math

import pytest
import torch
from benchmarks import compile_table, decode, gap, native, runs, timing, transformers_decode
from benchmarks.arms import GEOMETRIES, RIVALS, Hooks, Ours, cut, notes_of, window_bytes
from benchmarks.models import MIB, Collective, Experts, Linear, Shape, Slice, deepseek_v41_flash, llama_70b
from benchmarks.runs import null_of, ratio_of
from benchmarks.timing import NULL, OFF

import dsv41_l2pf
from dsv41_l2pf.demo.gpu_model import Decoder, llama_config
from dsv41_l2pf.demo.small_model import SmallModel


def test_cut_takes_the_first_bytes_in_order_in_multiples_of_16():
    weights = [torch.zeros(100, dtype=torch.uint8), torch.zeros(64, dtype=torch.uint8), torch.zeros(64)]
    first, second, third = (weight.data_ptr() for weight in weights)
    assert cut(weights, 1000) == [(first, 96), (second, 64), (third, 256)]
    assert cut(weights, 120) == [(first, 96), (second, 16)]
    assert cut(weights, 0) == []
    assert window_bytes(weights) == 100 + 64 + 256


def test_a_window_holds_what_is_read_between_its_collective_and_the_next():
    layer = (Linear("qkv", 8, 4), Linear("o", 8, 4), Collective("all_reduce"), Linear("up", 8, 4, fp8=False))
    layer += (Experts(64), Linear("down", 8, 4), Collective("all_reduce"))
    made = Slice(Shape("tiny", layer, num_layers=2), device="cpu")
    first, second = made.layers
    expected = [
        [first["up"], first["down"]],
        [second["qkv"], second["o"]],
        [second["up"], second["down"]],
        [],  # what the next step reads belongs to no window of this one
    ]
    windows = made.windows()
    assert len(windows) == made.shape.num_windows == 4
    for found, wanted in zip(windows, expected, strict=True):
        assert [weight.data_ptr() for weight in found] == [weight.data_ptr() for weight in wanted]
    assert first["up"].dtype == torch.bfloat16 and first["down"].dtype == torch.float8_e4m3fn


def test_ours_learns_the_windows_that_the_rivals_are_given():
    layer = (Linear("qkv", 64, 32, fp8=False), Collective("all_gather"), Linear("o", 32, 64, fp8=False))
    layer += (Collective("all_reduce"), Linear("up", 64, 32, fp8=False), Linear("wo_a", 64, 16, fp8=False, groups=2))
    made = Slice(Shape("tiny", layer, num_layers=2), device="cpu")
    ours = Ours(num_tokens=4)
    step = made.step(ours, made.inputs(4), delay_us=0.0)
    outputs, expected = step(), made.step(Hooks(), made.inputs(4), delay_us=0.0)()
    for got, want in zip(outputs, expected, strict=True):
        assert torch.equal(got, want)
    given = [
        (index, address, num_bytes)
        for index, weights in enumerate(made.windows())
        for address, num_bytes in cut(weights, 1 << 30)
    ]
    assert ours.prefetcher.plan_segments(4, "decode") == given
    ours.set_all(1024)
    assert {window["budget_bytes"] for window in ours.signature()["windows"]} == {1024}
    assert ours.notes()["num_windows_on"] == 4


def test_one_weight_for_every_layer_is_the_first_one_of_the_others():
    shape = Shape("tiny", (Collective("all_reduce"), Linear("weight", 8, 4)), num_layers=3)
    many, one = Slice(shape, device="cpu"), Slice(shape, device="cpu", one_weight=True)
    assert len({layer["weight"].data_ptr() for layer in many.layers}) == 3
    assert len({layer["weight"].data_ptr() for layer in one.layers}) == 1
    as_bytes = lambda weight: weight.view(torch.uint8)  # noqa: E731
    assert torch.equal(as_bytes(one.layers[0]["weight"]), as_bytes(many.layers[0]["weight"]))


def test_the_models_have_the_sizes_of_their_ranks():
    weights = lambda shape: sum(part.num_bytes for part in shape.layer if isinstance(part, Linear))  # noqa: E731
    assert weights(llama_70b(4)) == 2 * weights(llama_70b(8)) == 855_638_016 // 4
    assert (llama_70b(4).num_windows, deepseek_v41_flash(wo_a=False).num_windows) == (32, 60)
    assert weights(deepseek_v41_flash(wo_a=True)) - weights(deepseek_v41_flash(wo_a=False)) == 16 * MIB


def test_gap_gives_every_gemm_more_weights_than_twice_l2():
    for _, k, n, fp8 in gap.GEMMS:
        shape = gap.shape_of(k, n, fp8, l2_bytes=60 * MIB)
        assert shape.num_layers * shape.layer[1].num_bytes > 120 * MIB


def test_every_case_with_a_goal_comes_before_every_case_without():
    groups = decode.chosen_cases(list(decode.MODELS), list(decode.TOKENS), list(decode.DELAYS_US))
    cases = [case for group in groups for case in group]
    has_goal = [case.step_goal is not None for case in cases]
    assert has_goal == sorted(has_goal, reverse=True)
    reached = {(case.model, case.num_tokens, case.delay_us) for case in cases}
    assert set(decode.STEP_GOALS) <= reached
    assert len(reached) == len(cases) == 25
    assert {case.num_tokens for case in cases} == {1, 4, 6, 16, 96}
    assert {case.delay_us for case in cases} == {2.0, 5.0, 15.0, 26.0}
    assert all(len({case.model for case in group}) == 1 for group in groups)


def test_each_rival_has_its_published_budget_and_a_large_one():
    assert RIVALS == ("seed", "bulk_4k", "paced_load")
    for rival in RIVALS:
        published, large = (geometry for geometry in GEOMETRIES if geometry.arm == rival)
        assert published.budget_bytes < large.budget_bytes == 32 * MIB


def test_decode_judges_ours_by_the_goal_the_ideal_the_sweep_the_null_and_the_rivals():
    case = decode.Case("tp4", 16, 5.0)
    rows = [
        {"case": "c", "arm": arm, "ratio_to_off": ratio, "ratio_low": ratio - 0.002, "ratio_high": ratio + 0.002}
        for arm, ratio in {NULL: 1.0, "ours_auto": 0.93, "ours_tuned": 0.91, "ideal": 0.9, "seed": 0.95}.items()
    ]
    rows += [{**rows[0], "arm": rival, "ratio_to_off": 0.99} for rival in ("bulk_4k", "paced_load")]
    goals = {goal.text.removeprefix("c: "): goal for goal in decode.goals_of(case, "c", rows, to_best=1.02)}
    assert goals["step of off, ours_tuned"].missed_by == 0
    assert goals["step of off, ours_auto"].missed_by == pytest.approx(0.01)
    assert goals["share of the ideal saving, ours_tuned"].measured == pytest.approx(0.9)
    assert goals["auto budget of the best fixed one"].missed_by == pytest.approx(0.01)
    assert goals["never slower, ours_tuned"].missed_by == 0
    assert goals["ours less the best rival"].measured == pytest.approx(0.91 - 0.95)
    assert null_of(rows, "c") == pytest.approx(0.002)
    assert math.isnan(ratio_of(rows, "c", "unknown"))


class EagerGraph:
    """Stands in for a CUDA graph: runs the step again and writes where the first run wrote."""

    def __init__(self, step, outputs):
        self._step, self._outputs = step, outputs

    def replay(self):
        for kept, new in zip(self._outputs, self._step(), strict=True):
            kept.copy_(new)


@pytest.fixture
def without_gpu(monkeypatch):
    """Lets `Run` work on the CPU: eager steps, rivals that do nothing, and times that are made up."""

    def capture(step, main_priority=0):
        for _ in range(timing.NUM_WARM_UPS):
            step()
        outputs = step()
        return timing.Captured(EagerGraph(step, outputs), outputs, step)

    monkeypatch.setattr(runs, "capture", capture)
    monkeypatch.setattr(runs, "Rival", lambda geometry, windows: Hooks())
    monkeypatch.setattr(native, "read", lambda address, num_bytes: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(timing, "gpu_block", lambda replay, num_replays: [100.0] * num_replays)


def test_a_case_of_decode_goes_from_capture_to_goals(without_gpu):
    layer = (Linear("qkv", 64, 32, fp8=False), Collective("all_reduce"), Linear("up", 64, 32, fp8=False))
    weights = Slice(Shape("tiny", layer, num_layers=3), device="cpu")
    case = decode.Case("tp4", 16, 5.0)
    args = argparse.Namespace(tune_rounds=3, rounds=3, sweep_rounds=3, no_sweep=False)
    rows, spread, to_best = decode.measure(case, weights, torch.zeros(1 << 20, dtype=torch.uint8), args)
    arms = {entry["arm"]: entry for entry in rows}
    assert set(arms) == {
        *(OFF, NULL, "seed", "bulk_4k", "paced_load", "ours_auto", "ours_tuned", "ours_recaptured", "ideal"),
        *("sweep", "sweep_auto"),
    }
    assert (spread, to_best) == (0.0, 1.0)
    assert arms["ours_auto"]["num_windows_on"] == 3
    assert arms["ours_tuned"]["tune"]["num_off"] + arms["ours_tuned"]["num_windows_on"] == 3
    assert len([entry for entry in rows if entry["arm"] == "sweep"]) == len(decode.SWEEP_MIB)
    goals = decode.goals_of(case, case.name(weights.shape), rows, to_best)
    assert len(goals) == 6 and not any(math.isnan(goal.measured) for goal in goals if "share" not in goal.text)


def test_an_arm_that_computes_something_else_is_not_timed(without_gpu):
    layer = (Collective("all_reduce"), Linear("up", 64, 32, fp8=False))
    run = runs.Run("a case", Slice(Shape("tiny", layer, num_layers=2), device="cpu"), 4, 0.0)
    other = run.capture(Hooks())
    other.outputs[0].add_(1)
    other.graph = EagerGraph(lambda: [output.clone() for output in other.outputs], other.outputs)
    with pytest.raises(RuntimeError, match="a case, other: 2 of 3 outputs differ from off: nothing was timed"):
        run.add("other", other)


def test_notes_say_what_is_on():
    windows = [
        {"budget_bytes": 8 * MIB, "form": "load", "window_us": 9.0},
        {"budget_bytes": 0, "form": "bulk", "window_us": 11.0},
    ]
    found = notes_of({"windows": windows, "planned_bytes": 8 * MIB, "reason": ""})
    assert found == {
        "num_windows": 2,
        "num_windows_on": 1,
        "planned_mib": 8.0,
        "window_us": 10.0,
        "forms": ["load"],
        "reason": "",
    }


class CountingDecoder:
    def __init__(self):
        self.num_rewinds = 0

    def rewind(self):
        self.num_rewinds += 1


def test_replays_rewind_before_the_cache_ends():
    decoder, replayed = CountingDecoder(), []
    steps = transformers_decode.Steps(decoder)
    replay = steps.replay_of(lambda: replayed.append(decoder.num_rewinds))
    for _ in range(130):
        replay()
    assert replayed == [1] * 64 + [2] * 64 + [3] * 2
    steps.rewind()
    assert decoder.num_rewinds == 4


def _tiny(config):
    for name, value in {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}.items():
        setattr(config, name, value)
    for name in ("intermediate_size", "moe_intermediate_size"):
        if hasattr(config, name):
            setattr(config, name, 64)
    return config


@pytest.mark.parametrize(
    ("name", "config"), [("llama", llama_config), ("qwen3-moe", transformers_decode.qwen3_moe_config)]
)
def test_attach_alone_finds_two_windows_a_layer_of_a_transformers_model(name, config):
    with torch.inference_mode():
        model = transformers_decode.make_model(_tiny(config(2)), "cpu")
        transformers_decode.Peers(model, transformers_decode.MODELS[name].row_parallel)
        decoder = Decoder(model)
        prefetcher = dsv41_l2pf.attach(model, dsv41_l2pf.Config(), mode="decode")
        decoder.rewind()
        decoder.step()
        decoder.step()
        signature = transformers_decode.signature_of(prefetcher)
    assert signature["num_collectives"] == signature["num_windows"] == 4
    names = {
        index: prefetcher.weight_name(address)
        for index, address, _ in reversed(prefetcher.plan_segments(1, "decode"))
    }
    assert names[0] == "model.layers.0.post_attention_layernorm.weight"
    assert names[1] == "model.layers.1.input_layernorm.weight"
    assert names[3] == "model.norm.weight"
    assert [index for index, _, _ in transformers_decode.settings_of(signature)] == [0, 1, 2, 3]


def test_a_model_that_learned_no_window_is_an_error_that_says_why():
    model = torch.nn.Linear(4, 4)
    prefetcher = dsv41_l2pf.attach(model, dsv41_l2pf.Config(), mode="decode")
    model(torch.zeros(1, 4))
    with pytest.raises(RuntimeError, match="attach learned no window: no collective"):
        transformers_decode.signature_of(prefetcher)


def test_each_way_leaves_the_model_as_it_found_it(monkeypatch):
    pair = object.__new__(compile_table.Pair)
    torch.manual_seed(0)
    pair.off, pair.on = (SmallModel(64, 1, 5.0, device="cpu", dtype=torch.float32) for _ in range(2))
    pair.on.load_state_dict(pair.off.state_dict())
    monkeypatch.setattr(compile_table, "step_of", lambda model: lambda: [model(torch.ones(1, 64))])
    for _ in range(2):
        with pair.arms(compile_table.EAGER) as arms:
            assert [arm.name for arm in arms] == [OFF, NULL, compile_table.ON, compile_table.WATCHED]
            assert all(torch.equal(arm.replay()[0], arms[0].replay()[0]) for arm in arms)
        assert "forward" not in pair.on.__dict__
