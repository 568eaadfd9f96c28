"""The parts of benchmarks/ that need no GPU: statistics, the JSON, the page, the paper model, cases and windows."""

import argparse
import json
import math
import subprocess
from pathlib import Path

import pytest
import torch
from benchmarks import compile_table, counters, decode, gap, native, page, predict, runs, timing, transformers_decode
from benchmarks.arms import GEOMETRIES, RIVALS, Hooks, Ours, cut, notes_of, window_bytes
from benchmarks.common import Document, Goal, geometric_mean, verdict
from benchmarks.models import MIB, Collective, Experts, Linear, Shape, Slice, deepseek_v41_flash, llama_70b
from benchmarks.runs import null_of, ratio_of, rows_of
from benchmarks.timing import NULL, OFF, Timed, median_difference, null_spread, paired, quartiles, row

import dsv41_l2pf
from dsv41_l2pf.demo.gpu_model import Decoder, llama_config
from dsv41_l2pf.demo.small_model import SmallModel

ROOT = Path(__file__).resolve().parent.parent
RECORD = {"gpu": "a GPU", "driver": "1.2", "torch": "2.11", "commit": "abc", "command": "python3 -m benchmarks.decode"}
SCHEMA = ("benchmark", "gpu", "driver", "torch", "commit", "command", "null_spread", "rows")


# Statistics


def test_ratios_are_paired_by_round_so_that_drift_cancels():
    off = [100.0, 110.0, 120.0, 130.0]
    assert paired([time * 0.9 for time in off], off) == pytest.approx([0.9] * 4)


def test_the_null_spread_is_the_farther_quartile_of_null_over_off():
    times = {OFF: [100.0] * 5, NULL: [98.0, 99.0, 100.0, 103.0, 104.0]}
    assert quartiles(paired(times[NULL], times[OFF])) == pytest.approx((0.99, 1.0, 1.03))
    assert null_spread(times) == pytest.approx(0.03)


def test_a_row_holds_the_median_and_the_quartiles_of_the_ratio():
    times = {OFF: [100.0] * 5, "ours_auto": [88.0, 89.0, 90.0, 93.0, 94.0]}
    found = row("a case", Timed("ours_auto", lambda: None, notes={"num_windows": 3}), times, delay_us=5.0)
    assert (found["value"], found["unit"], found["num_windows"], found["delay_us"]) == (90.0, "us", 3, 5.0)
    assert [found[key] for key in ("ratio_low", "ratio_to_off", "ratio_high")] == pytest.approx([0.89, 0.9, 0.93])


def test_a_difference_is_the_median_of_differences():
    assert median_difference({"a": [10.0, 20.0, 90.0], "b": [9.0, 18.0, 10.0]}, "a", "b") == 2.0


def test_a_geometric_mean_of_something_that_is_not_positive_is_zero_and_of_nothing_is_no_number():
    assert geometric_mean([0.5, 2.0]) == pytest.approx(1.0)
    assert geometric_mean([0.5, -0.1]) == 0.0
    assert math.isnan(geometric_mean([]))


def test_a_rival_is_judged_by_its_better_budget_and_the_ideal_by_its_best():
    arms = [
        Timed(OFF, lambda: None),
        Timed("seed 6 MiB", lambda: None, notes={"rival": "seed", "budget_bytes": 6 * MIB}),
        Timed("seed 32 MiB", lambda: None, notes={"rival": "seed", "budget_bytes": 32 * MIB}),
    ]
    times = {OFF: [100.0] * 4, "seed 6 MiB": [98.0] * 4, "seed 32 MiB": [97.0] * 4}
    for budget, real_us in ((16 * MIB, 111.0), (32 * MIB, 108.0)):
        for which, us in (("real", real_us), ("dummy", 120.0)):
            arms.append(Timed(f"{which} {budget / MIB:.2f} MiB", lambda: None, notes={"budget_bytes": budget}))
            times[arms[-1].name] = [us] * 4
    rows = {found["arm"]: found for found in rows_of("a case", arms, times, model="m")}
    assert set(rows) == {OFF, "seed", "ideal"}
    assert (rows["seed"]["ratio_to_off"], rows["seed"]["variant"]) == (0.97, "seed 32 MiB")
    assert rows["seed"]["variants"] == {"seed 6 MiB": 0.98, "seed 32 MiB": 0.97}
    assert rows["ideal"]["ratio_to_off"] == pytest.approx(0.88)  # 120 - 108 of 100
    assert (rows["ideal"]["value"], rows["ideal"]["budget_mib"], rows["ideal"]["model"]) == (88.0, 32.0, "m")


# Goals and the JSON


@pytest.mark.parametrize(
    ("measured", "at_most", "slack", "missed_by"),
    [(0.9, True, 0.0, 0.0), (0.95, True, 0.0, 0.03), (0.95, True, 0.05, 0.0), (0.9, False, 0.0, 0.02)],
)
def test_a_goal_says_by_how_much_it_is_missed(measured, at_most, slack, missed_by):
    goal = Goal("step", measured, 0.92, at_most, slack)
    assert goal.missed_by == pytest.approx(missed_by)
    assert goal.record()["met"] is (missed_by == 0)


def test_a_goal_without_a_measurement_is_not_met():
    record = Goal("step", math.nan, 0.92).record()
    assert record["met"] is False
    assert verdict(record) == "not measured"


def document(**changes) -> Document:
    rows = [
        {"case": "a case", "arm": OFF, "value": 100.0, "unit": "us", "ratio_to_off": 1.0},
        {"case": "a case", "arm": NULL, "value": 100.1, "unit": "us", "ratio_to_off": 1.001},
        {"case": "a case", "arm": "seed", "value": 101.0, "unit": "us", "ratio_to_off": 1.01},
        {"case": "a case", "arm": "ours_auto", "value": 93.0, "unit": "us", "ratio_to_off": 0.93},
        {"case": "a case", "arm": "ours_tuned", "value": 91.0, "unit": "us", "ratio_to_off": 0.91},
    ]
    for entry in rows:
        entry |= {"ratio_low": entry["ratio_to_off"] - 0.002, "ratio_high": entry["ratio_to_off"] + 0.002}
    goals = [Goal("a case: step of off, ours_tuned", 0.91, 0.92), Goal("a case: step of off, ours_auto", 0.93, 0.92)]
    made = Document("decode", dict(RECORD), rows=rows, goals=goals, null_spreads=[0.003, 0.001])
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def test_the_json_has_the_agreed_keys_and_the_largest_null_spread(tmp_path):
    path = document().write(tmp_path / "results")
    found = json.loads(path.read_text())
    assert path.name == "decode.json"
    assert tuple(found)[: len(SCHEMA)] == SCHEMA
    assert found["null_spread"] == 0.003
    assert {"case", "arm", "value", "unit", "ratio_to_off"} <= set(found["rows"][0])
    assert [goal["met"] for goal in found["goals"]] == [True, False]
    assert [child.name for child in path.parent.iterdir()] == ["decode.json"]


def test_the_json_has_null_where_there_is_no_number(tmp_path):
    path = document(goals=[Goal("step", math.nan, 0.92)], null_spreads=[]).write(tmp_path)
    found = json.loads(path.read_text())
    assert found["null_spread"] is None
    assert found["goals"][0]["measured"] is None


def test_a_case_that_fails_is_named_and_takes_no_other_along():
    made = document()
    with made.case("bad"):
        raise RuntimeError("2 of 3 outputs differ from off\nand more")
    with made.case("good"):
        pass
    assert made.failed == {"bad": "2 of 3 outputs differ from off"}


# Shapes, windows, cases


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


# transformers


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


# The paper model against a measurement


CALIBRATION = {
    "window_bytes": 16_000_000,
    "cold_us": 8.0,
    "hot_us": 4.0,
    "chosen_fill_gbps": 2000.0,
    "hot_knee_bytes": 40 * MIB,
}


def gap_content() -> dict:
    shared = {"case": "fp8, 5 us", "gemm": "fp8 1x1 M16", "delay_us": 5.0, "weight_bytes": 16_000_000}
    shared["unit"] = "us a window"
    rows = [
        {**shared, "arm": OFF, "value": 30.0, "ratio_to_off": 1.0, "share": 0.0, "saved_us": 0.0},
        {**shared, "arm": "ours_auto", "value": 28.0, "ratio_to_off": 0.93, "share": 0.7, "saved_us": 2.0},
        {**shared, "arm": "ideal", "value": 27.0, "ratio_to_off": 0.9, "share": 1.0, "saved_us": 3.0},
    ]
    probes = [{"case": "fill rate", "arm": "ours_auto", "value": 3500.0, "unit": "GB/s", "ratio_to_off": 0.91}]
    goals = [Goal("share", 0.7, 0.8, at_most=False)]
    made = Document("gap", dict(RECORD), rows=rows + probes, goals=goals, null_spreads=[0.002])
    return made.content() | {"calibration": CALIBRATION}


def test_the_paper_model_is_checked_against_gap_with_the_rates_of_the_same_run():
    (found,) = predict.checked(gap_content())
    # 10 MB fit into 5 us at 2 TB/s; each byte gains (8 - 4) us / 16 MB.
    assert found["predicted_us"] == pytest.approx(2.5 - 0.1)
    assert (found["ours_us"], found["ideal_us"]) == (2.0, 3.0)
    assert predict.typical_ratio([found]) == pytest.approx(2.0 / 2.4)
    assert predict.typical_ratio([]) is None


# The page


def test_the_page_shows_tables_pictures_and_every_missed_goal(tmp_path, monkeypatch):
    results, readme = tmp_path / "results", tmp_path / "README.md"
    document(failed={"b": "it broke"}, skipped=["c"]).write(results)
    (results / "gap.json").write_text(json.dumps(gap_content()))
    (results / "notes.md").write_text("The tail of a window is short.\n")
    monkeypatch.setattr("sys.argv", ["page", "--results", str(results), "--page", str(readme)])
    assert page.main() == 0
    text = readme.read_text()
    assert "1 of 3 goals are met." in text
    assert "| decode | a case: step of off, ours_auto | <= 0.92 | 0.930 | missed by 0.01 |" in text
    assert "| gap | share | >= 0.8 | 0.700 | missed by 0.1 |" in text
    assert "| case | off | null | seed | ours_auto | ours_tuned |" in text
    assert "| a case | 1.0000 | 1.0010 | 1.0100 | 0.9300 | 0.9100 |" in text
    assert "| fill rate | ours_auto | 3500.00 GB/s | 0.910 |" in text
    assert "| fp8, 5 us | 2.40 | 2.00 | 3.00 | 0.83 |" in text
    assert "The tail of a window is short." in text
    assert "Failed: b: it broke" in text and "the deadline came first: c." in text
    for name in ("gap", "decode"):
        assert f"](results/{name}.png)" in text
        assert (results / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_a_page_of_nothing_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["page", "--results", str(tmp_path), "--page", str(tmp_path / "README.md")])
    with pytest.raises(SystemExit, match="expected one of gap, decode, transformers, dispatch, counters, multi_gpu.json"):
        page.main()


def test_a_sweep_is_shown_by_its_best_fixed_budget():
    rows = [
        {"case": "c", "arm": "sweep_auto", "ratio_to_off": 0.93},
        {"case": "c", "arm": "sweep", "budget_mib": 8, "ratio_to_off": 0.95},
        {"case": "c", "arm": "sweep", "budget_mib": 24, "ratio_to_off": 0.92},
    ]
    content = document().content()
    text = page.section(content | {"rows": content["rows"] + rows}, "decode.png")
    assert "| c | 24 | 0.9200 | 0.9300 |" in text


@pytest.mark.parametrize("words", [[], ["unknown"]])
def test_the_script_names_the_benchmarks_it_knows(words):
    found = subprocess.run([ROOT / "tools" / "bench.sh", *words], capture_output=True, text=True)
    assert found.returncode == 2
    assert "gap, decode, transformers" in found.stderr


# Counters


def ncu_output(durations_ns):
    """As ncu prints it: its own lines first, names, units, then a line a kernel."""
    names = ["ID", "Kernel Name", *(metric for metric, _ in counters.COUNTERS.values())]
    lines = [names, ["", "", "byte", "%", "ns"]]
    lines += [[str(i), "gemm, <1>", "15,270,000", "40.5", f"{ns:,}"] for i, ns in enumerate(durations_ns)]
    return "==PROF== Connected\n" + "\n".join(",".join(f'"{cell}"' for cell in line) for line in lines)


def test_counters_become_rows_whose_share_is_of_the_gap_between_cold_and_hot():
    arms = counters.arms_of(["bulk"])
    records = list(counters.records_of(ncu_output([9000, 8000, 6500] * len(counters.GEMMS))))
    rows = counters.rows_of(arms, [1] * len(counters.GEMMS), records)
    assert [row["arm"] for row in rows[:3]] == ["cold", "ours_bulk", "hot"]
    assert {row["case"] for row in rows} == set(map(counters.case_of, counters.GEMMS))
    assert rows[1]["dram_read_mb"] == pytest.approx(15.27)
    assert rows[1]["l2_read_hit_percent"] == pytest.approx(40.5)
    assert rows[1]["value"] == pytest.approx(8.0)
    assert [row["share"] for row in rows[:3]] == pytest.approx([0, 0.4, 1])


def test_kernels_of_one_gemm_add_up():
    arms = counters.arms_of([])
    durations = [9500, 6500, *([4000, 5000, 2500, 3500] * 2)]
    rows = counters.rows_of(arms, [1, 2, 2], list(counters.records_of(ncu_output(durations))))
    assert [row["value"] for row in rows] == pytest.approx([9.5, 6.5, 9, 6, 9, 6])
    assert [row["dram_read_mb"] for row in rows[1:3]] == pytest.approx([15.27, 2 * 15.27])


def test_counters_that_do_not_fit_are_an_error():
    with pytest.raises(ValueError, match="expected a table of counters, got ==ERROR== no permission"):
        list(counters.records_of("==ERROR== no permission"))
    with pytest.raises(ValueError, match="expected 15 kernels for 3 arms, got 4"):
        counters.rows_of(counters.arms_of(["bulk"]), [1, 2, 2], list(counters.records_of(ncu_output([1000] * 4))))


def test_the_page_shows_counters_without_a_picture():
    records = list(counters.records_of(ncu_output([9000, 7000, 6500] * len(counters.GEMMS))))
    rows = counters.rows_of(counters.arms_of(["load"]), [1] * len(counters.GEMMS), records)
    content = {**Document("counters", RECORD, rows=rows).content()}
    text = page.render({"counters": content}, "results")
    assert "| fp8 7168x2112 M16 | ours_load | 15.27 | 40.5 | 7.00 | 0.80 |" in text
    assert "counters.png" not in text


# What torch.compile makes of it


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
