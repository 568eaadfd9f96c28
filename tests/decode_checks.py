"""What both ranks must return from `decode_scenarios`; the same for gloo on CPUs and for NCCL on a GPU.

results: of each rank, every scenario's result by its name.
"""

from __future__ import annotations

from decode_scenarios import LATCH, NUM_WINDOWS

FROZEN, PLANNED = "frozen", "planned"


def assert_on_and_off(results: list[dict], state: str) -> None:
    for result in results:
        found = result["on_and_off"]
        assert (found["num_nodes"], found["state"], found["reason"]) == (NUM_WINDOWS, state, "")
        assert found["ranks_agree"]


def assert_one_rank_latched_off(results: list[dict]) -> None:
    healthy, latched = (result["one_rank_latched_off"] for result in results)
    assert (healthy["num_nodes"], healthy["reason"]) == (NUM_WINDOWS, "")
    assert (latched["num_nodes"], latched["reason"]) == (0, LATCH)


def assert_different_plans(results: list[dict]) -> None:
    first, second = (result["different_plans"] for result in results)
    assert (first["num_nodes"], second["num_nodes"]) == (NUM_WINDOWS, NUM_WINDOWS - 1)
    assert len(first["windows"]) == len(second["windows"]) == NUM_WINDOWS
    # FP8 halves the layers' weights; the last window holds the norm and the head, which stay as they are.
    assert all(b < a for (_, a), (_, b) in zip(first["windows"][:-1], second["windows"][:-1]))
    assert first["windows"][-1] == second["windows"][-1]


def assert_relearned_and_recaptured(results: list[dict], state: str) -> None:
    for result in results:
        found = result["relearn_and_recapture"]
        assert found["same_plan"]
        assert (found["num_nodes"], found["state"], found["reason"]) == (NUM_WINDOWS, state, "")


def assert_tuned_alike(results: list[dict]) -> None:
    first, second = (result["tune"] for result in results)
    assert first["decision"] == second["decision"]
    assert first["is_set"] and second["is_set"]
    assert first["reason"].split(":")[0] in ("on by tune", "off by tune")


def assert_tuned_with_one_latched_off(results: list[dict]) -> None:
    first, second = (result["tune_with_one_rank_latched_off"] for result in results)
    assert first["decision"] == second["decision"]
    assert first["is_set"] and (first["num_windows"], second["num_windows"]) == (NUM_WINDOWS, 0)
    assert second["reason"].endswith(f"this rank only went along: {LATCH}")
