"""The operators on CUDA tensors: schemas, errors, exact segments, streams, devices, allocations, and a clean import."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from chain import NUM_TOKENS, Chain, all_reduce, ops, random
from torch.library import opcheck

import dsv41_l2pf as l2pf

pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("warm")]

ROOT = Path(__file__).resolve().parent.parent.parent
REJECTED = (ValueError, RuntimeError)  # torch maps std::invalid_argument to one or the other, by its version


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


@pytest.fixture
def x():
    return random(NUM_TOKENS, 64)


@pytest.fixture
def w():
    return random(64, 64, seed=1)


@pytest.mark.parametrize("name", ["l2_prefetch", "l2_join", "collective_begin", "collective_end", "record_weight"])
@pytest.mark.parametrize("inside_a_forward", [False, True])
def test_opcheck_of_ops_with_tensors(x, w, name, inside_a_forward):
    args = {
        "l2_prefetch": (x, [w, w.t()], 1024),
        "l2_join": (x,),
        "collective_begin": (x, "all_reduce"),
        "collective_end": (x,),
        "record_weight": ([w],),
    }[name]
    if not inside_a_forward:
        opcheck(getattr(ops, name).default, args)
    else:
        with l2pf.Prefetcher(l2pf.Config()).forward(NUM_TOKENS):
            opcheck(getattr(ops, name).default, args)
    ops.l2_join(x)


def test_opcheck_of_the_emulated_collective(x):
    opcheck(ops.emulated_all_reduce.default, (x, 1.0))


def test_opcheck_of_the_brackets_and_status():
    prefetcher = l2pf.Prefetcher(l2pf.Config())
    # What opcheck runs is its own business; whatever it opens is closed again.
    opcheck(ops.begin_forward.default, (prefetcher.handle, 1, 1, "decode"))
    for _ in range(100):
        if l2pf.status()["forward"] is None:
            break
        ops.end_forward()
    opcheck(ops.end_forward.default, ())
    opcheck(ops.status.default, (), test_utils=("test_schema", "test_autograd_registration", "test_faketensor"))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x, w: ops.l2_prefetch(x, [w], -2), "expected `budget_bytes` of at least -1, got -2"),
        (lambda x, w: ops.l2_prefetch(x, [w.cpu()]), "expected weights on the anchor's device cuda:0, got one on cpu"),
        (lambda x, w: ops.l2_prefetch(x.cpu(), [w]), "expected weights on the anchor's device cpu, got one on cuda:0"),
        (lambda x, w: ops.l2_prefetch(x, [w.float().to_sparse()]), "expected `weights` to be a strided tensor on CPU or CUDA"),
        (lambda x, w: ops.l2_join(x.float().to_sparse()), "expected `anchor` to be a strided tensor on CPU or CUDA, got a sparse"),
        (lambda x, w: ops.collective_begin(x, "gossip"), "expected `kind` to be one of all_reduce, all_gather"),
        (lambda x, w: ops.emulated_all_reduce(x, -1.0), "expected `delay_us` in [0, 1e6], got -1"),
        (lambda x, w: ops.emulated_all_reduce(x, 1.0, 0), "expected `num_ctas` of at least 1, got 0"),
        (lambda x, w: ops.begin_forward(10**9, 1, 1, "decode"), "expected the handle of a live prefetcher, got 1000000000"),
        (lambda x, w: ops.invalidate(10**9), "expected the handle of a live prefetcher, got 1000000000"),
    ],
)
def test_errors_say_expected_and_got(x, w, call, message):
    with pytest.raises(REJECTED, match=re.escape(message)):
        call(x, w)


def recorded(*weights):
    """The planned (address, num_bytes) of weights recorded after one collective, and the number of skipped views."""
    prefetcher = l2pf.Prefetcher(l2pf.Config())
    anchor = random(NUM_TOKENS, 64)
    with prefetcher.forward(NUM_TOKENS):
        all_reduce(anchor, 0.0)
        ops.record_weight(list(weights))
    (signature,) = prefetcher.status()["signatures"]
    return [segment[1:] for segment in prefetcher.plan_segments(NUM_TOKENS)], signature["num_skipped_views"]


DTYPES = [torch.float8_e4m3fn, torch.float8_e8m0fnu, torch.bfloat16, torch.int8, torch.float32, torch.uint8]


def of_dtype(dtype, rows=64, columns=128):
    row_bytes = columns * torch.empty(0, dtype=dtype).element_size()
    return torch.zeros(rows, row_bytes, dtype=torch.uint8, device="cuda").view(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_segments_of_any_dtype_are_exact(dtype):
    w = of_dtype(dtype)
    row_bytes = w.stride(0) * w.element_size()
    whole = (w.data_ptr(), w.nbytes)
    assert recorded(w) == ([whole], 0)
    assert recorded(w.t()) == ([whole], 0)
    assert recorded(w[8:16]) == ([(w.data_ptr() + 8 * row_bytes, 8 * row_bytes)], 0)
    assert recorded(w.flatten()[16:48]) == ([(w.data_ptr() + 16 * w.element_size(), 32 * w.element_size())], 0)
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


def test_a_range_inside_a_recorded_one_is_not_planned_twice(w):
    assert recorded(w, w.t(), w[8:16], w) == ([(w.data_ptr(), w.nbytes)], 0)


def test_a_weight_on_another_device_is_skipped(w):
    assert recorded(w.cpu(), w) == ([(w.data_ptr(), w.nbytes)], 1)


SLEEP_CYCLES = 200_000_000  # a tenth of a second, about


def test_an_eager_prefetch_waits_for_the_given_stream_alone(x, w):
    given, events = torch.cuda.Stream(), [torch.cuda.Event() for _ in range(2)]
    torch.cuda.synchronize()
    with torch.cuda.stream(given):
        torch.cuda._sleep(SLEEP_CYCLES)
        ops.l2_prefetch(x, [w])
    ops.l2_join(x)  # the default stream waits for the prefetch, which waits for the sleeping stream
    events[0].record()
    assert not events[0].query()
    torch.cuda.synchronize()

    with torch.cuda.stream(given):
        torch.cuda._sleep(SLEEP_CYCLES)
    ops.l2_prefetch(x, [w])  # has nothing to do with the sleeping stream
    ops.l2_join(x)
    events[1].record()
    events[1].synchronize()
    assert not given.query()
    torch.cuda.synchronize()


def test_a_forward_on_a_given_stream_equals_the_default_one():
    chain = Chain().learn()
    expected = chain.run()
    given = torch.cuda.Stream()
    given.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(given):
        out = chain.forward()
    torch.cuda.synchronize()
    assert chain.signature()["num_launched"] == len(chain.layers)
    assert torch.equal(out, expected)


def test_the_tensors_device_counts_and_the_current_one_stays():
    for index in range(torch.cuda.device_count()):
        with torch.cuda.device(0):
            x = torch.ones(NUM_TOKENS, 64, device=f"cuda:{index}")
            prefetcher = l2pf.Prefetcher(l2pf.Config())
            for _ in range(2):
                with prefetcher.forward(NUM_TOKENS):
                    all_reduce(x, 1.0)
                    ops.record_weight([x])
            (signature,) = prefetcher.status()["signatures"]
            assert (signature["num_windows"], signature["num_launched"], signature["latched_off"]) == (1, 1, False)
            assert torch.cuda.current_device() == 0
            assert f"cuda:{index}" in [device["device"] for device in l2pf.status()["devices"]]


def test_status_names_the_device():
    (device,) = [entry for entry in l2pf.status()["devices"] if entry["device"] == "cuda:0"]
    properties = torch.cuda.get_device_properties(0)
    assert (device["name"], device["l2_bytes"]) == (properties.name, properties.L2_cache_size)
    assert set(device["forms"]) >= {"lines", "load"}
    assert ("bulk" in device["forms"]) is (properties.major >= 9)


def test_operators_never_use_the_caching_allocator(w):
    chain = Chain().learn()
    x, out = chain.x, w.clone()
    torch.cuda.synchronize()
    keys = ["allocation.all.allocated", "segment.all.allocated", "active_bytes.all.current"]
    before = [torch.cuda.memory_stats()[key] for key in keys]
    for _ in range(10):
        with chain.prefetcher.forward(NUM_TOKENS):
            for layer in chain.layers:
                all_reduce(x, 0.0)
                ops.record_weight([layer])
        ops.l2_prefetch(x, [w], 4096)
        ops.l2_join(x)
        ops.status()
    chain.prefetcher.set_window(0, num_tokens=NUM_TOKENS, budget_bytes=0)
    torch.cuda.synchronize()
    assert [torch.cuda.memory_stats()[key] for key in keys] == before
    assert torch.equal(out, w)


def test_status_says_what_a_prefetch_takes_of_the_gpu():
    x = random(4, 64)
    ops.l2_prefetch(x, [x])
    ops.l2_join(x)
    (device,) = [entry for entry in l2pf.status()["devices"] if entry["device"] == "cuda:0"]
    footprint = device["footprint"]
    assert 0 < footprint["num_ctas"] <= torch.cuda.get_device_properties(0).multi_processor_count
    assert footprint["num_threads"] == 512
    assert 0 < footprint["num_registers"] <= 64
    assert 0 < footprint["shared_bytes"] <= 4096


IMPORT = """
import ctypes, torch, dsv41_l2pf
assert dsv41_l2pf.status()["devices"] == []
prefetcher = dsv41_l2pf.Prefetcher(dsv41_l2pf.Config())
with prefetcher.forward(1):
    pass
assert not torch.cuda.is_initialized()
driver, active = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
assert driver.cuInit(0) == 0
assert driver.cuDevicePrimaryCtxGetState(0, ctypes.byref(ctypes.c_uint()), ctypes.byref(active)) == 0
assert active.value == 0, "somebody made a CUDA context"
# The same process can then use CUDA.
x = torch.ones(4, 64, device="cuda")
torch.ops.dsv41.l2_prefetch(x, [x])
torch.ops.dsv41.l2_join(x)
torch.cuda.synchronize()
assert [device["device"] for device in dsv41_l2pf.status()["devices"]] == ["cuda:0"]
"""


def test_importing_initialises_no_cuda():
    result = subprocess.run([sys.executable, "-c", IMPORT], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
