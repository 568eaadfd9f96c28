"""Fixtures of the GPU tests."""

import gc

import pytest
import torch


@pytest.fixture(scope="session")
def warm():
    """Libraries make their handles and workspaces, and the emulated peer its thread, at first use: not in a capture."""
    import dsv41_l2pf  # noqa: F401  (loads the operators)

    with torch.no_grad():
        x = torch.ones(4, 1024, dtype=torch.bfloat16, device="cuda")
        torch.nn.functional.linear(x, torch.ones(1024, 1024, dtype=torch.bfloat16, device="cuda"))
        torch.ops.dsv41.emulated_all_reduce(x, 1.0)
        torch.ops.dsv41.l2_prefetch(x, [x])
        torch.ops.dsv41.l2_join(x)
    torch.cuda.synchronize()


@pytest.fixture(autouse=True)
def nothing_left_open():
    """Every test leaves no forward open and no device error."""
    yield
    import dsv41_l2pf

    torch.cuda.synchronize()
    gc.collect()
    status = dsv41_l2pf.status()
    if status["forward"] is not None:
        torch.ops.dsv41.abort_forward()  # not the next test's failure too
    assert status["forward"] is None
    assert [device["error"] for device in status["devices"] if device["error"]] == []
