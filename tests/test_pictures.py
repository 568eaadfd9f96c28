"""Pictures: what they show, read from the SVG's text."""

import pytest
from cli_runner import CALIBRATION

from dsv41_l2pf.calibration import Calibration
from dsv41_l2pf.config import MIB
from dsv41_l2pf.pictures import suffix_problem
from dsv41_l2pf.pictures.fill import draw_fill
from dsv41_l2pf.pictures.saving import draw_saving
from dsv41_l2pf.pictures.timeline import draw_timeline
from dsv41_l2pf.predict import GPUS, WINDOWS_US
from dsv41_l2pf.trace import Slice


def step(num_collectives):
    slices = [Slice("forward", "forward", 0.0, 100.0 * num_collectives)]
    for i in range(num_collectives):
        begin_us = 100.0 * i
        slices.append(Slice("collectives", f"all_reduce {i}", begin_us, 20.0))
        arguments = {"window_bytes": (i + 1) * MIB, "budget_bytes": 4 * MIB, "form": "load", "weights": [f"w{i}"]}
        slices.append(Slice("windows", f"l2pf window {i} (w{i})", begin_us, 20.0, arguments))
        slices.append(Slice("reads", f"weight_{i}", begin_us + 20.0, 80.0, {"read_bytes": (i + 1) * MIB}))
    return slices


def test_the_timeline_shows_bytes_and_names(tmp_path):
    draw_timeline(tmp_path / "a.svg", step(6), "a step")
    drawn = (tmp_path / "a.svg").read_text()
    assert "a step" in drawn and "weight_5" in drawn
    assert ">3.0 MiB<" in drawn and ">6.0 MiB<" not in drawn, "a window is cut by its budget"


def test_a_long_step_is_cut_and_says_so(tmp_path):
    draw_timeline(tmp_path / "a.svg", step(6), "a step", max_collectives=2)
    drawn = (tmp_path / "a.svg").read_text()
    assert "weight_1" in drawn and "weight_2" not in drawn
    assert "the step goes on to 600 us" in drawn


def test_the_timeline_of_a_step_without_collectives(tmp_path):
    draw_timeline(tmp_path / "a.png", step(0) + [Slice("reads", "all", 0.0, 50.0)], "no collectives")
    assert (tmp_path / "a.png").stat().st_size > 1000


def test_the_saving_names_every_gpu(tmp_path):
    draw_saving(tmp_path / "a.svg", GPUS, 16 * MIB, WINDOWS_US)
    drawn = (tmp_path / "a.svg").read_text()
    assert all(f">{gpu.name}<" in drawn for gpu in GPUS) and "16 MiB of weights" in drawn


def test_the_fill_curve_names_every_form_and_the_choice(tmp_path):
    draw_fill(tmp_path / "a.svg", Calibration.from_dict(CALIBRATION))
    drawn = (tmp_path / "a.svg").read_text()
    assert ">lines<" in drawn and "chosen: load, 24 CTAs" in drawn and ">48<" in drawn


@pytest.mark.parametrize(("name", "is_fine"), [("a.png", True), ("a.SVG", True), ("a.pdf", False), ("png", False)])
def test_names_of_pictures(tmp_path, name, is_fine):
    assert (suffix_problem(tmp_path / name) == "") is is_fine
