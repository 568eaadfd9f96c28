"""`doctor`: the sentence, what is a finding, engines by their source, a made-up GPU and a made-up calibration."""

import json
import os
import sys

import pytest
import torch
from cli_runner import CALIBRATION, run, run_json

import dsv41_l2pf
from dsv41_l2pf.doctor import calibrations, engines, examination, gpus
from dsv41_l2pf.doctor import self_test as self_test_module
from dsv41_l2pf.doctor.gpus import GpuFacts
from dsv41_l2pf.doctor.self_test import SelfTest, run_self_test
from dsv41_l2pf.integrations import b12x_targets, targets


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith("DSV41_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def calibration_file(tmp_path):
    def write(**changes):
        path = tmp_path / "cache" / "dsv41_l2pf" / "calibration" / "fake-gpu.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"format": 1, **CALIBRATION, **changes}))
        return path

    return write


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def gpu(monkeypatch, calibration_file, tmp_path):
    """A machine with one calibrated GPU that passes the self-test; returns what the self-test finds, to be changed."""
    path = calibration_file()
    passed = SelfTest("cuda:0", "", 1, 1, 0.5, 8 << 20, 35.0, 9.5, 8.0)
    monkeypatch.setattr(sys.modules["dsv41_l2pf.cli.doctor"], "no_gpu_reason", lambda: "")
    facts = [GpuFacts(0, "Fake GPU", "12.1", 24 << 20, ("lines", "load"))]
    monkeypatch.setattr(examination, "look_at_gpus", lambda: facts)
    monkeypatch.setattr(examination, "run_self_test", lambda on_gpu: passed)
    monkeypatch.setattr(calibrations, "_file_of", lambda index: path if index < 2 else tmp_path)
    return facts


def test_without_a_gpu_it_is_off_and_the_cpu_part_still_works(no_gpu):
    found = run_json("doctor", exit_code=1)
    assert found["on"] is False and found["gpus"] == []
    assert found["sentence"] == f"off because {found['no_gpu']}"
    test = found["self_test"]
    assert (test["device"], test["problem"], test["num_windows"], test["num_launched"]) == ("cpu", "", 4, 4)
    assert test["elapsed_s"] < 10 and test["cold_us"] is None
    effects = {variable["name"]: variable["effect"] for variable in found["variables"]}
    assert effects["DSV41_L2_PREFETCH_FORM"] == "form auto"


def test_with_a_gpu_it_is_on(gpu):
    found = run_json("doctor")
    assert found["on"] is True and found["findings"] == []
    assert found["sentence"] == "on: attach() prefetches on cuda:0; engines need DSV41_L2_PREFETCH=1 for it"
    assert found["gpus"][0]["forms"] == ["lines", "load"]
    (calibration,) = found["calibrations"]
    assert calibration["gpus"] == [0] and calibration["values"] == CALIBRATION and calibration["age_s"] < 600


def test_what_people_read_of_it(gpu, monkeypatch):
    monkeypatch.setenv("DSV41_L2_PREFETCH", "1")
    result = run("doctor")
    lines = result.stdout.splitlines()
    assert result.exit_code == 0
    assert lines[-1] == "on: attach() prefetches on cuda:0; engines load it too"
    assert "a read of 8.0 MiB takes 35.0 us from DRAM, 9.5 us after a prefetch, 8.0 us from L2" in result.stdout
    assert "Fake GPU (cuda:0), measured 0 s ago: load, 24 CTAs, 700 GB/s; a read of 4.00 MiB" in result.stdout
    assert "forms lines, load" in result.stdout and "not installed" in result.stdout


def test_a_bad_variable_is_a_finding_with_its_message(gpu, monkeypatch):
    monkeypatch.setenv("DSV41_L2_PREFETCH_FORM", "fast")
    found = run_json("doctor", exit_code=1)
    message = "DSV41_L2_PREFETCH_FORM: expected one of auto, bulk, lines, load, load_keep, load_both, got 'fast'"
    assert found["findings"] == [message] and found["sentence"] == f"off because {message}"


def test_values_with_brackets_are_shown_as_they_are(gpu, monkeypatch):
    monkeypatch.setenv("DSV41_L2_PREFETCH_MB", "[/bold]")
    result = run("doctor")
    assert result.exit_code == 1 and result.stdout.count("[/bold]") == 3


def test_a_gpu_that_cannot_be_measured_is_a_finding_but_switches_nothing_off(gpu, monkeypatch):
    monkeypatch.setattr(examination, "current_gpu_reason", lambda: "not calibrated: out of memory")
    monkeypatch.setattr(examination.torch.cuda, "current_device", lambda: 0)
    found = run_json("doctor", exit_code=1)
    assert found["on"] is True and found["findings"] == ["cuda:0: not calibrated: out of memory"]


def test_an_unknown_variable_is_a_finding_but_switches_nothing_off(gpu, monkeypatch):
    monkeypatch.setenv("DSV41_L2_PREFETCH_BUDGET", "6")
    found = run_json("doctor", exit_code=1)
    assert found["on"] is True and "got 'DSV41_L2_PREFETCH_BUDGET'" in found["findings"][0]


def test_switched_off(gpu, monkeypatch):
    monkeypatch.setenv("DSV41_L2_PREFETCH", "0")
    found = run_json("doctor", exit_code=1)
    assert found["sentence"] == "off because DSV41_L2_PREFETCH=0" and found["findings"] == []


def test_a_prefetch_that_brings_nothing_is_off(gpu, monkeypatch):
    failed = SelfTest("cuda:0", "it brings nothing", 1, 1, 0.5, 8 << 20, 35.0, 35.0, 8.0)
    monkeypatch.setattr(examination, "run_self_test", lambda on_gpu: failed)
    found = run_json("doctor", exit_code=1)
    assert found["findings"] == ["self-test on cuda:0: it brings nothing"]
    assert found["sentence"] == "off because it brings nothing"


def test_gpus_of_one_model_share_a_calibration_and_one_without_is_named(gpu):
    gpu.append(GpuFacts(1, "Fake GPU", "12.1", 24 << 20, ("lines", "load")))
    gpu.append(GpuFacts(2, "Other GPU", "9.0", 50 << 20, ("bulk",)))
    text = run("doctor").stdout
    assert "calibration: Fake GPU (cuda:0, cuda:1), measured" in text
    assert text.count("calibration: none yet") == 1 and "calibration: none yet of cuda:2" in text


def test_a_driver_without_a_gpu_that_torch_can_use_is_named(no_gpu, monkeypatch):
    monkeypatch.setattr(gpus, "driver_release", lambda: "580.1.2")
    assert run_json("doctor", exit_code=1)["no_gpu"].endswith("can use, though driver 580.1.2 is loaded")


def test_a_torch_without_cuda_is_named(no_gpu, monkeypatch):
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    found = run_json("doctor", exit_code=1)
    assert found["sentence"] == f"off because torch {torch.__version__} was built without CUDA"
    assert found["has_nvtx"] is False


def test_a_library_without_cuda_beside_a_gpu_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(dsv41_l2pf, "status", lambda: {"cuda_built": False})
    assert "off because there is a GPU, but the library was built without CUDA" in run("doctor").stdout


def test_a_gpu_that_the_library_cannot_use_is_a_finding(gpu):
    gpu[0] = GpuFacts(0, "Fake GPU", "7.0", 6 << 20, (), "no kernel image")
    assert run_json("doctor", exit_code=1)["findings"] == ["cuda:0: no kernel image"]


def test_a_calibration_that_is_not_believed(no_gpu, calibration_file):
    path = calibration_file(num_ctas=0)
    found = run_json("doctor", exit_code=1)
    (entry,) = found["calibrations"]
    assert entry["path"] == str(path) and entry["values"] is None and entry["gpus"] == []
    assert "num_ctas: expected a whole number > 0, got 0" in entry["problem"]
    assert entry["problem"] in found["findings"][0]


@pytest.fixture
def b12x(monkeypatch, tmp_path):
    """A b12x on the path, as source: what its class defines is up to the test."""

    def write(*methods):
        folder = tmp_path / "engines" / "b12x" / "comm" / "roce"
        folder.mkdir(parents=True)
        (tmp_path / "engines" / "b12x" / "__init__.py").write_text("raise RuntimeError('it was imported')")
        body = "".join(f"    def {method}: ...\n" for method in methods)
        (folder / "roce_oneshot.py").write_text(f"class RoceOneshotAllReduce:\n{body}")
        monkeypatch.syspath_prepend(str(tmp_path / "engines"))
        targets.source_of.cache_clear()
        return engines.look_at_engines()[2]

    yield write
    targets.source_of.cache_clear()


METHODS = (
    "all_reduce(self, inp, out, stream, channel_id, peer_input_ptrs, plan)",
    "all_gather(self, inp, dim, out, stream, plan)",
    "should_allreduce(self, inp)",
    "should_all_gather(self, inp, dim)",
)


def test_an_engine_with_every_function_has_no_findings(b12x):
    found = b12x(*METHODS)
    assert (found.name, found.is_installed, found.version) == ("b12x", True, "of unknown version")
    assert found.findings == []
    states = {hook.path.removeprefix("b12x.comm."): hook.state for hook in found.hooks}
    assert states["roce.roce_oneshot.RoceOneshotAllReduce.all_reduce"] == "found"
    assert states["roce_ring.roce_oneshot.RoceOneshotAllReduce.all_reduce"] == "not in this version"
    assert len(states) == len(b12x_targets.TARGETS)


def test_an_engine_without_a_function_is_a_finding_that_names_it(b12x, gpu):
    found = b12x(*METHODS[:1], "all_gather(self, tensor, dim, out, stream, plan)", METHODS[2])
    paths = "b12x.comm.roce.roce_oneshot.RoceOneshotAllReduce"
    assert found.findings == [
        f"b12x of unknown version: {paths}.all_gather: expected parameters (self, inp, ...), "
        "got (self, tensor, dim, out, stream, plan), so RoCE windows is off",
        f"b12x of unknown version: {paths}.should_all_gather is missing, so RoCE windows is off",
    ]
    assert run("doctor").exit_code == 1


def test_a_changed_parameter_that_is_passed_through_is_fine(b12x):
    found = b12x("all_reduce(self, inp, out)", *METHODS[1:])
    assert found.findings == [] and found.hooks[0].state == "changed"


def test_parts_of_b12x_without_collectives_are_no_engine(monkeypatch, tmp_path):
    (tmp_path / "b12x").mkdir()
    (tmp_path / "b12x" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    targets.source_of.cache_clear()
    assert not engines.look_at_engines()[2].is_installed


def test_a_module_that_is_missing_is_one_finding():
    hooks = (engines.HookFacts("a.b", "x windows", "missing", "a is missing"),) * 3
    found = engines.EngineFacts("e", True, "1.0", "1.1", None, hooks)
    assert found.findings == ["e 1.0: a is missing, so x windows is off"]


def test_engines_that_are_not_installed_are_named_so():
    found = {engine.name: engine for engine in engines.look_at_engines()}
    assert set(found) == {"sglang", "vllm", "b12x"}
    for engine in found.values():
        if not engine.is_installed:
            assert engine.hooks == () and engine.version == "" and engine.findings == []


@pytest.mark.parametrize(
    ("text", "release"),
    [("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Tue", "580.159.04"), ("nothing", "")],
)
def test_the_driver_release(monkeypatch, tmp_path, text, release):
    (tmp_path / "version").write_text(text)
    monkeypatch.setattr(gpus, "_DRIVER", tmp_path / "version")
    assert gpus.driver_release() == release


def test_the_self_test_says_why_it_failed(monkeypatch):
    def fail(*args, **kwargs):
        raise RuntimeError("no memory\nmore")

    monkeypatch.setattr(self_test_module, "SmallModel", fail)
    found = run_self_test(on_gpu=False)
    assert (found.device, found.problem) == ("cpu", "no memory")
