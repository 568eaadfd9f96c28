"""`attach` on CUDA models: what is learned in eager forwards, and the graph that a captured forward becomes."""

import pytest
import torch
from chain import DELAY_US, WIDTH, ops, random, weight
from graph_inspect import EMULATED_COLLECTIVE, PREFETCH, assert_behind, capture, read_graph

import dsv41_l2pf as l2pf
from dsv41_l2pf.watching import NUM_LEARNING, NUM_TURNS

pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("warm")]


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


class Block(torch.nn.Module):
    """Column-parallel, row-parallel, all-reduce: the linears read one weight each."""

    def __init__(self, seed: int):
        super().__init__()
        self.up = torch.nn.Linear(WIDTH, 2 * WIDTH, bias=False, device="cuda", dtype=torch.bfloat16)
        self.down = torch.nn.Linear(2 * WIDTH, WIDTH, bias=False, device="cuda", dtype=torch.bfloat16)
        self.up.weight.copy_(weight(2 * WIDTH, WIDTH, seed=seed))
        self.down.weight.copy_(weight(WIDTH, 2 * WIDTH, seed=seed + 1000))

    def forward(self, x):
        y = self.down(torch.relu(self.up(x)))
        ops.emulated_all_reduce(y, DELAY_US)
        return x + y

    def weights(self):
        return [self.up.weight, self.down.weight]


class Fp8Block(torch.nn.Module):
    """One FP8 weight, kept as serving engines do: row-major [out, in], read through its transpose."""

    def __init__(self, seed: int):
        super().__init__()
        self.register_buffer("weight", weight(WIDTH, WIDTH, seed=seed).to(torch.float8_e4m3fn))
        self.register_buffer("scale", torch.ones((), device="cuda"))

    def forward(self, x):
        y = torch._scaled_mm(
            x.to(torch.float8_e4m3fn), self.weight.t(), scale_a=self.scale, scale_b=self.scale, out_dtype=torch.bfloat16
        )
        ops.emulated_all_reduce(y, DELAY_US)
        return x + y

    def weights(self):
        return [self.weight]  # the scale's 4 bytes hold no aligned segment


class Model(torch.nn.Module):
    def __init__(self, block, num_blocks=4):
        super().__init__()
        self.blocks = torch.nn.ModuleList([block(seed=i) for i in range(num_blocks)])
        self.head = torch.nn.Linear(WIDTH, WIDTH, bias=False, device="cuda", dtype=torch.bfloat16)
        self.head.weight.copy_(weight(WIDTH, WIDTH, seed=77))

    def forward(self, hidden_states):
        for block in self.blocks:
            hidden_states = block(hidden_states)
        return self.head(hidden_states)


@pytest.mark.parametrize("block", [Block, Fp8Block])
def test_attach_learns_then_captures(block):
    model, x = Model(block), random(16, WIDTH)
    model(x)  # cuBLAS chooses its kernels outside the capture
    off_graph, off_out = capture(lambda: model(x))
    prefetcher = l2pf.attach(model)
    eager = [model(x) for _ in range(2)]
    graph, out = capture(lambda: model(x))

    (signature,) = prefetcher.status()["signatures"]
    num_blocks = len(model.blocks)
    assert (signature["num_tokens"], signature["mode"], signature["state"]) == (16, "decode", "frozen")
    assert (signature["num_collectives"], signature["num_windows"], signature["reason"]) == (num_blocks, num_blocks, "")
    read_after = [following.weights() for following in model.blocks[1:]] + [[model.head.weight]]
    assert prefetcher.plan_segments(16) == [
        (index, w.data_ptr(), w.nbytes) for index, weights in enumerate(read_after) for w in weights
    ]

    seen = read_graph(graph)
    nodes = seen.kernels(PREFETCH)
    assert len(nodes) == num_blocks == signature["num_launched"]
    assert_behind(seen, nodes, seen.kernels(EMULATED_COLLECTIVE))
    assert read_graph(off_graph).kernels(PREFETCH) == []

    for i in range(20):
        if i == 10:
            x.copy_(random(16, WIDTH, seed=5))
        graph.replay()
        off_graph.replay()
        assert torch.equal(out, off_out)
        if i == 0:
            assert all(torch.equal(out, result) for result in eager)
    prefetcher.detach()
    assert torch.equal(model(x), out)


def test_detach_leaves_a_live_graph_working():
    model, x = Model(Block), random(16, WIDTH)
    prefetcher = l2pf.attach(model)
    model(x), model(x)
    graph, out = capture(lambda: model(x))
    prefetcher.detach()
    for _ in range(20):
        graph.replay()
    assert torch.equal(out, model(x))
    later, _ = capture(lambda: model(x))
    assert read_graph(later).kernels(PREFETCH) == []


def test_more_than_max_tokens_is_left_alone():
    model, x = Model(Block), random(32, WIDTH)
    prefetcher = l2pf.attach(model, l2pf.Config(max_tokens=16))
    model(x), model(x)
    graph, _ = capture(lambda: model(x))
    assert read_graph(graph).kernels(PREFETCH) == []
    assert prefetcher.status()["signatures"] == []
    prefetcher.detach()


def test_each_batch_size_has_its_own_windows_and_graph():
    model = Model(Block)
    prefetcher = l2pf.attach(model)
    graphs = {}
    for num_tokens in (1, 2, 4):
        x = random(num_tokens, WIDTH, seed=num_tokens)
        expected = [model(x) for _ in range(2)]
        graphs[num_tokens] = (*capture(lambda: model(x)), expected[-1], x)
    for graph, out, expected, _ in graphs.values():
        assert len(read_graph(graph).kernels(PREFETCH)) == len(model.blocks)
        graph.replay()
        assert torch.equal(out, expected)
    assert {entry["num_tokens"] for entry in prefetcher.status()["signatures"]} == {1, 2, 4}
    prefetcher.detach()


def test_eager_forwards_that_are_left_alone_change_no_bit_and_no_capture():
    model, x = Model(Block), random(4, WIDTH)
    expected = model(x)
    prefetcher = l2pf.attach(model)
    for _ in range(NUM_LEARNING + 2 * NUM_TURNS + 2):
        assert torch.equal(model(x), expected)
        torch.cuda.synchronize()
    (watching,) = prefetcher._attachment.watching.values()
    assert watching.ratio is not None
    watching.ratio = 2.0  # whatever was measured here
    num_eager = prefetcher.status()["signatures"][0]["num_eager"]
    assert torch.equal(model(x), expected)
    assert prefetcher.status()["signatures"][0]["num_eager"] == num_eager
    graph, out = capture(lambda: model(x))
    assert len(read_graph(graph).kernels(PREFETCH)) == len(model.blocks)
    graph.replay()
    assert torch.equal(out, expected)
    prefetcher.detach()
