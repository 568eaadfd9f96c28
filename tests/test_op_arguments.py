"""Operators with random arguments: refused with a reason or harmless, never a crash, and no byte outside a storage."""

import pytest
import torch
from fuzzing import LONG_SECONDS, search
from hypothesis import given
from hypothesis import strategies as st

import dsv41_l2pf as l2pf

ops = torch.ops.dsv41
REJECTED = (ValueError, RuntimeError)
DTYPES = [torch.uint8, torch.int16, torch.bfloat16, torch.float32, torch.float64, torch.complex128, torch.float8_e4m3fn]
X = torch.ones(2, 8)

any_int64 = st.one_of(st.integers(-3, 40), st.integers(-(1 << 63), (1 << 63) - 1))
any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
modes = st.one_of(any_text, any_text.map(lambda text: f"decode/{text}"), st.just("decode"))


@st.composite
def tensors(draw):
    """A view of any shape, strides and offset that lies inside a storage of its own."""
    dtype = draw(st.sampled_from(DTYPES))
    storage = torch.zeros(draw(st.integers(0, 300)), dtype=dtype)
    sizes = draw(st.lists(st.integers(0, 9), max_size=4))
    strides = [draw(st.integers(0, 40)) for _ in sizes]
    last = sum((size - 1) * stride for size, stride in zip(sizes, strides)) if all(sizes) else -1
    offset = draw(st.integers(0, 40))
    if last >= 0 and offset + last >= len(storage):
        return storage
    return storage.as_strided(sizes, strides, offset)


odd_tensors = st.one_of(
    tensors(),
    st.just(torch.ones(4, 4).to_sparse()),
    st.just(torch.nn.Parameter(torch.ones(8))),
    st.just(torch.ones(8)[::2]),
    st.just(torch.tensor(1.0)),
    st.just(torch.empty(0)),
)


def whole_bytes(tensor):
    """The aligned ranges of bytes that a dense view touches, worked out from its elements one by one."""
    if tensor.numel() == 0:
        return []
    size, begin = tensor.element_size(), tensor.untyped_storage().data_ptr()
    numbers = torch.arange(tensor.untyped_storage().nbytes() // size)
    seen = sorted(set(numbers.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).flatten().tolist()))
    if len(seen) != seen[-1] - seen[0] + 1:
        return []  # holes
    first = -(-(begin + seen[0] * size) // 16) * 16
    end = (begin + (seen[-1] + 1) * size) // 16 * 16
    return [(0, first, end - first)] if first < end else []


def attempt(op, *args):
    """Runs an operator; a refusal must have words."""
    try:
        return op(*args)
    except REJECTED as error:
        assert "xpected" in str(error), error
        return None


@pytest.mark.timeout(300 + 2 * LONG_SECONDS)
def test_a_recorded_view_is_planned_byte_for_byte():
    prefetcher = l2pf.Prefetcher(l2pf.Config())

    def run(how):
        @how
        @given(tensors())
        def planned(tensor):
            prefetcher.invalidate()
            with prefetcher.forward(1):
                ops.collective_begin(X, "all_reduce")
                ops.collective_end(X)
                ops.record_weight([tensor])
            assert prefetcher.plan_segments(1) == whole_bytes(tensor)

        planned()

    search(run, max_examples=300)


@pytest.mark.timeout(300 + 2 * LONG_SECONDS)
def test_any_tensors_and_budgets():
    def run(how):
        @how
        @given(odd_tensors, st.lists(odd_tensors, max_size=5), any_int64, any_text)
        def survives(anchor, weights, number, text):
            attempt(ops.l2_prefetch, anchor, weights, number)
            attempt(ops.window_begin, anchor, weights, number)
            attempt(ops.window_end, anchor)
            attempt(ops.join_windows, anchor)
            attempt(ops.collective_begin, anchor, text)
            attempt(ops.collective_end, anchor)
            attempt(ops.record_unplanned, number)
            ops.l2_join(X)
            assert not any(device["outstanding"] or device["error"] for device in l2pf.status()["devices"])

        survives()

    search(run, max_examples=200)


@pytest.mark.timeout(300 + 2 * LONG_SECONDS)
def test_any_signatures_handles_and_settings():
    def run(how):
        @how
        @given(*[any_int64] * 3, modes, any_int64, any_int64, any_text, st.lists(odd_tensors, max_size=4))
        def survives(offset, model, num_tokens, mode, index, budget, text, weights):
            handle = attempt(ops.create_prefetcher, budget, True, "auto", "auto", num_tokens, bool(model % 2), False)
            if handle is None:
                handle = ops.create_prefetcher(-1, True, "auto", "auto", 1 << 40, True, False)
            if attempt(ops.begin_forward, handle, model, num_tokens, mode) is not None:
                ops.collective_begin(X, "all_reduce")
                attempt(ops.record_weight, weights)
                attempt(ops.record_unplanned, budget)
                ops.collective_begin(X, "broadcast")
                attempt(ops.l2_prefetch, X, weights, budget)
                ops.end_forward()
            attempt(ops.set_window, handle, model, num_tokens, mode, index, budget, text)
            attempt(ops.set_window, handle, model, num_tokens, mode, index, budget, "")
            attempt(ops.plan_segments, handle, model, num_tokens, mode)
            for op in (ops.pause, ops.resume, ops.resume, ops.invalidate, ops.destroy_prefetcher):
                if offset != handle and offset not in known:
                    attempt(op, offset)
                attempt(op, handle)
            assert l2pf.status()["forward"] is None  # and what it prints is JSON, whatever the mode was

        known = {entry["prefetcher"] for entry in l2pf.status()["prefetchers"]}
        survives()

    search(run, max_examples=200)
