"""What a prefetch takes of an SM, read from the built library: it must fit beside a collective, and stay small.

A jump table in constant memory, or twice the code, cost 0.3 to 0.6 us a window on an H200.
"""

import pytest
import torch
from libraries import kernel_resources
from test_wheels import LIBRARY, ROOT

import dsv41_l2pf

SM_REGISTERS = 65536
THREADS = 512  # of a CTA of ours, and of the collective beside it
COLLECTIVE_REGISTERS = 64  # a thread


@pytest.fixture(scope="module")
def prefetch_kernels():
    if not dsv41_l2pf.status()["cuda_built"]:
        pytest.skip("the library was built without CUDA")
    found = [kernel for kernel in kernel_resources(ROOT / LIBRARY) if "l2pf_prefetch" in kernel["name"]]
    assert found, "expected the kernels by table and by value"
    return found


def test_it_fits_on_an_sm_beside_a_collective_of_512_threads(prefetch_kernels):
    for kernel in prefetch_kernels:
        assert THREADS * (kernel["REG"] + COLLECTIVE_REGISTERS) <= SM_REGISTERS, kernel
        assert kernel["SHARED"] <= 4096, kernel


def test_it_neither_spills_nor_jumps_by_a_table(prefetch_kernels):
    for kernel in prefetch_kernels:
        assert kernel["STACK"] == kernel["LOCAL"] == 0, kernel
        # Before sm_90 an address is kept there; a table has an offset of 4 bytes for each of three cases or more.
        assert kernel.get("CONSTANT[2]", 0) <= 8, kernel


def test_the_backend_reports_it_where_there_is_no_kernel_as_none():
    torch.ops.dsv41.l2_prefetch(torch.ones(1), [torch.ones(64)], 0)
    (cpu,) = [entry for entry in dsv41_l2pf.status()["devices"] if entry["device"] == "cpu"]
    assert cpu["footprint"] is None
