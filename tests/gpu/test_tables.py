"""Device tables: how long they live, what patching one changes, and that learning again does not pile them up."""

import statistics
import time

import pytest
import torch
from chain import NUM_TOKENS, WIDTH, Chain, bare_windows, free_everything, ops, random, weight
from graph_inspect import PREFETCH, capture, read_graph

import dsv41_l2pf as l2pf

pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("warm")]

MIB = 1 << 20


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


def test_a_table_outlives_the_prefetcher_and_the_model_while_a_graph_lives():
    free_everything()
    before_bytes = torch.cuda.memory_allocated()
    x = random(NUM_TOKENS, 64)
    model = torch.nn.ParameterList([torch.nn.Parameter(weight(2048, 2048, seed=i)) for i in range(4)])
    weight_bytes = sum(parameter.nbytes for parameter in model)
    prefetcher = l2pf.Prefetcher(l2pf.Config())
    for _ in range(2):
        with prefetcher.forward(NUM_TOKENS):
            bare_windows(x, list(model))

    def forward():
        with prefetcher.forward(NUM_TOKENS):
            bare_windows(x, [])

    graph, _ = capture(forward)
    assert len(read_graph(graph).kernels(PREFETCH)) == 1
    handle = prefetcher.handle
    del prefetcher, forward, model
    free_everything()
    assert handle not in [entry["prefetcher"] for entry in l2pf.status()["prefetchers"]]
    assert torch.cuda.memory_allocated() >= before_bytes + weight_bytes  # the graph's
    for _ in range(20):
        graph.replay()
    torch.cuda.synchronize()

    del graph
    deadline = time.monotonic() + 10
    while torch.cuda.memory_allocated() >= before_bytes + weight_bytes and time.monotonic() < deadline:
        free_everything()
    assert torch.cuda.memory_allocated() < before_bytes + weight_bytes, "the weights of a dead graph are still held"


def test_invalidate_leaves_a_live_graph_working():
    chain = Chain().learn()
    graph, out = capture(chain.forward)
    chain.prefetcher.invalidate()
    assert chain.signature()["state"] == "unlearned"
    for _ in range(20):
        graph.replay()
    assert torch.equal(out, chain.run())
    chain.learn()
    assert chain.signature()["state"] == "planned"


def test_patching_a_window_changes_a_timed_read():
    # 16 MiB, read by one GEMM; before every round something larger than L2 is written.
    x, weights = random(8, 1024), [weight(8192, 1024)]
    assert weights[0].nbytes == 16 * MIB
    flush = torch.empty(256 * MIB, dtype=torch.uint8, device="cuda")
    out = torch.empty(8, 8192, dtype=torch.bfloat16, device="cuda")
    prefetcher = l2pf.Prefetcher(l2pf.Config())

    def forward():
        with prefetcher.forward(8):
            bare_windows(x, weights, delay_us=40.0)

    def read():
        torch.mm(x, weights[0].t(), out=out)

    forward(), forward(), read()
    graph, _ = capture(forward)
    expected = out.clone()

    def timed_read_us(budget_bytes):
        prefetcher.set_window(0, num_tokens=8, budget_bytes=budget_bytes)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        flush.fill_(1)
        # The host is ahead: the flush and the graph take longer than enqueueing what follows.
        graph.replay()
        begin.record()
        read()
        end.record()
        end.synchronize()
        assert torch.equal(out, expected)
        return 1e3 * begin.elapsed_time(end)

    for budget_bytes in (-1, 0, -1, 0):
        timed_read_us(budget_bytes)
    on, off = [], []
    for i in range(40):
        order = [(on, -1), (off, 0)]
        for times, budget_bytes in order if i % 2 == 0 else reversed(order):
            times.append(timed_read_us(budget_bytes))
    on_us, off_us = statistics.median(on), statistics.median(off)
    print(f"16 MiB read by a GEMM of 8 rows: window off {off_us:.2f} us, on {on_us:.2f} us")
    assert on_us < 0.9 * off_us


def test_a_budget_is_seen_in_status_and_restored():
    chain = Chain().learn()
    graph, out = capture(chain.forward)
    expected = chain.run()
    window_bytes = chain.signature()["windows"][0]["window_bytes"]
    for budget_bytes, shown in ((0, 0), (4096, 4096), (-1, window_bytes)):
        chain.prefetcher.set_window(0, num_tokens=NUM_TOKENS, budget_bytes=budget_bytes, form="lines")
        window = chain.signature()["windows"][0]
        assert (window["budget_bytes"], window["form"]) == (shown, "lines")
        graph.replay()
        assert torch.equal(out, expected)


def test_a_window_cannot_be_set_inside_a_capture():
    chain = Chain().learn()

    def forward():
        out = chain.forward()
        with pytest.raises(RuntimeError, match="cannot be set while its stream is being captured"):
            chain.prefetcher.set_window(0, num_tokens=NUM_TOKENS, budget_bytes=0)
        return out

    graph, out = capture(forward)
    graph.replay()
    assert torch.equal(out, chain.run())


def test_learning_again_keeps_memory_flat():
    x = random(NUM_TOKENS, 64)
    # Many segments, so that a leaked table would be seen: 1000 of them take 32 KiB of device memory.
    rows = list(random(1001, 64))
    prefetcher = l2pf.Prefetcher(l2pf.Config())

    def relearn(num_rounds):
        for _ in range(num_rounds):
            for weights in (rows[:1000], rows[1:]):  # another recording, so another plan, every time
                with prefetcher.forward(NUM_TOKENS):
                    bare_windows(x, weights, delay_us=0.0)
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0]

    allocated_bytes, free_bytes = relearn(5)
    allocated_after, free_after = relearn(100)
    assert prefetcher.status()["signatures"][0]["num_eager"] == 210
    assert allocated_after == allocated_bytes
    assert free_bytes - free_after < 2 * MIB


@pytest.mark.parametrize("delay_us", [5.0, 40.0])
def test_a_window_is_as_long_as_its_collective_not_as_the_host_that_launches_it(delay_us):
    x, weights = torch.zeros(1 << 14, device="cuda"), random(256, WIDTH)
    prefetcher = l2pf.Prefetcher(l2pf.Config())
    for _ in range(3):
        with prefetcher.forward(1):
            ops.collective_begin(x, "all_reduce")
            time.sleep(20e-6)  # a slow host
            ops.emulated_all_reduce(x, delay_us)
            ops.collective_end(x)
            ops.record_weight([weights])
        torch.cuda.synchronize()
    (signature,) = prefetcher.status()["signatures"]
    (window,) = signature["windows"]
    assert delay_us < window["window_us"] < delay_us + 5
