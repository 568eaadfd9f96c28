"""Makes the checkout importable and keeps GPU tests from being skipped by accident.

A test marked `cuda` is skipped, with the reason, where it cannot run; L2PF_REQUIRE_CUDA=1 turns every skip of one into a
failure. The same holds for `two_gpus`, where L2PF_REQUIRE_GPUS=2 does so.
"""

import json
import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

# marker -> the environment variable that makes a skip a failure, with its value
REQUIRE = {"cuda": ("L2PF_REQUIRE_CUDA", "1"), "two_gpus": ("L2PF_REQUIRE_GPUS", "2")}


def _why_no_cuda() -> str:
    import torch

    if not torch.cuda.is_available():
        return f"no GPU that torch {torch.__version__} can use"
    import dsv41_l2pf  # noqa: F401  (loads the operators)

    if not json.loads(torch.ops.dsv41.status())["cuda_built"]:
        return "libdsv41_l2pf.so was built without CUDA"
    return ""


def _why_no_two_gpus() -> str:
    import torch

    found = torch.cuda.device_count()
    return _why_no_cuda() or ("" if found >= 2 else f"needs 2 GPUs, this machine has {found}")


WHY_NOT = {"cuda": _why_no_cuda, "two_gpus": _why_no_two_gpus}


def pytest_collection_modifyitems(items):
    for marker, why_not in WHY_NOT.items():
        marked = [item for item in items if item.get_closest_marker(marker)]
        reason = why_not() if marked else ""
        for item in marked if reason else ():
            item.add_marker(pytest.mark.skip(reason=reason))


def _fail_if_required(report, markers):
    if not report.skipped or hasattr(report, "wasxfail"):
        return
    for variable, value in (REQUIRE[marker] for marker in markers):
        if os.environ.get(variable) == value:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
            report.outcome = "failed"
            report.longrepr = f"{variable}={value}, but {report.nodeid} was skipped: {reason}"
            return


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    _fail_if_required(report, [marker for marker in REQUIRE if item.get_closest_marker(marker)])
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    # A module that skips itself while it is imported has no items to ask for a marker.
    report = yield
    text = collector.path.read_text() if isinstance(collector, pytest.Module) else ""
    _fail_if_required(report, [marker for marker in REQUIRE if f"mark.{marker}" in text])
    return report
