"""Makes the checkout importable and keeps GPU tests from being skipped by accident.

A test marked `cuda` is skipped, with the reason, where it cannot run; L2PF_REQUIRE_CUDA=1 turns every skip of one into a
failure.
"""

import json
import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

REQUIRE_CUDA = os.environ.get("L2PF_REQUIRE_CUDA") == "1"


def _why_no_cuda() -> str:
    import torch

    if not torch.cuda.is_available():
        return f"no GPU that torch {torch.__version__} can use"
    import dsv41_l2pf  # noqa: F401  (loads the operators)

    if not json.loads(torch.ops.dsv41.status())["cuda_built"]:
        return "libdsv41_l2pf.so was built without CUDA"
    return ""


def pytest_collection_modifyitems(items):
    cuda_items = [item for item in items if item.get_closest_marker("cuda")]
    reason = _why_no_cuda() if cuda_items else ""
    if reason:
        for item in cuda_items:
            item.add_marker(pytest.mark.skip(reason=reason))


def _fail_if_required(report, is_cuda_test: bool):
    if REQUIRE_CUDA and is_cuda_test and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"L2PF_REQUIRE_CUDA=1, but {report.nodeid} was skipped: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    _fail_if_required(report, item.get_closest_marker("cuda") is not None)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    # A module that skips itself while it is imported has no items to ask for a marker.
    report = yield
    is_module = isinstance(collector, pytest.Module)
    _fail_if_required(report, is_module and "mark.cuda" in collector.path.read_text())
    return report
