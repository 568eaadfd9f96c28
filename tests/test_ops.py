"""The operators on CPU tensors: schemas and exact segments of any dtype and view."""

import pytest
import torch
from torch.library import opcheck

import dsv41_l2pf as l2pf

ops = torch.ops.dsv41
NUM_TOKENS = 4


@pytest.fixture
def x():
    return torch.ones(NUM_TOKENS, 64)


@pytest.fixture
def w():
    return torch.ones(64, 64)


@pytest.fixture
def prefetcher():
    return l2pf.Prefetcher(l2pf.Config())


def tensor_arguments(x, w):
    return {
        "l2_prefetch": (x, [w, w.t()], 1024),
        "l2_join": (x,),
        "window_begin": (x, [w], 1024),
        "window_end": (x,),
        "join_windows": (x,),
        "collective_begin": (x, "all_reduce"),
        "collective_end": (x,),
        "record_weight": ([w],),
        "emulated_all_reduce": (x, 1.0),
    }


def test_every_operator_with_a_tensor_is_checked_here(x, w):
    from dsv41_l2pf.ops import TENSOR_OPS

    assert set(TENSOR_OPS) == set(tensor_arguments(x, w))


@pytest.mark.parametrize("name", tensor_arguments(None, torch.ones(1)))
@pytest.mark.parametrize("inside_a_forward", [False, True])
def test_opcheck_of_ops_with_tensors(x, w, prefetcher, name, inside_a_forward):
    args = tensor_arguments(x, w)[name]
    if inside_a_forward:
        with prefetcher.forward(NUM_TOKENS):
            opcheck(getattr(ops, name).default, args)
    else:
        opcheck(getattr(ops, name).default, args)
    ops.l2_join(x)


def test_opcheck_of_the_brackets_and_status(prefetcher):
    # What opcheck runs is its own business; whatever it opens is closed again.
    opcheck(ops.begin_forward.default, (prefetcher.handle, 1, 1, "decode"))
    for _ in range(100):
        if l2pf.status()["forward"] is None:
            break
        ops.end_forward()
    opcheck(ops.end_forward.default, ())
    opcheck(ops.record_unplanned.default, (1,))
    opcheck(ops.status.default, (), test_utils=("test_schema", "test_autograd_registration", "test_faketensor"))


def test_outside_a_forward_the_brackets_do_nothing(x, w):
    before = l2pf.status()["prefetchers"]
    ops.collective_begin(x, "all_reduce")
    ops.collective_end(x)
    ops.record_weight([w])
    ops.record_unplanned(5)
    ops.end_forward()
    ops.abort_forward()
    assert l2pf.status()["prefetchers"] == before and l2pf.status()["forward"] is None


def recorded(*weights):
    """The planned (address, num_bytes) of weights recorded after one collective, and the number of skipped views."""
    prefetcher = l2pf.Prefetcher(l2pf.Config())
    anchor = torch.ones(NUM_TOKENS, 64)
    with prefetcher.forward(NUM_TOKENS):
        ops.collective_begin(anchor, "all_reduce")
        ops.collective_end(anchor)
        ops.record_weight(list(weights))
    (signature,) = prefetcher.status()["signatures"]
    return [segment[1:] for segment in prefetcher.plan_segments(NUM_TOKENS)], signature["num_skipped_views"]


DTYPES = [torch.float8_e4m3fn, torch.float8_e8m0fnu, torch.bfloat16, torch.int8, torch.float32, torch.bool]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_segments_of_any_dtype_are_exact(dtype):
    w = torch.zeros(64, 128 * torch.empty(0, dtype=dtype).element_size(), dtype=torch.uint8).view(dtype)
    assert w.data_ptr() % 16 == 0
    row_bytes = w.stride(0) * w.element_size()
    whole = (w.data_ptr(), w.nbytes)
    assert recorded(w) == ([whole], 0)
    assert recorded(w.t()) == ([whole], 0)
    assert recorded(w[8:16]) == ([(w.data_ptr() + 8 * row_bytes, 8 * row_bytes)], 0)
    assert recorded(w.view(8, 8, 128).permute(2, 0, 1)) == ([whole], 0)
    assert recorded(w[:1].expand(64, -1)) == ([(w.data_ptr(), row_bytes)], 0)
    assert recorded(w[:, :64]) == ([], 1)  # holes: the other half of every row
    assert recorded(w[::2]) == ([], 1)
    assert recorded(w[:0]) == ([], 0)


def test_segments_are_aligned_inwards(w):
    bytes_of_w = w.view(torch.int8).flatten()
    assert recorded(bytes_of_w[5:100]) == ([(w.data_ptr() + 16, 80)], 0)
    assert recorded(bytes_of_w[1:16]) == ([], 0)
    assert recorded(bytes_of_w[1:32]) == ([(w.data_ptr() + 16, 16)], 0)

