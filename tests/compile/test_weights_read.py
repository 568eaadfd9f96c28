"""Which weights the pass finds behind a collective: through views, casts, dequantisation, scales; in reading order."""

import pytest
import torch
from compiled_chain import HIDDEN, emulated, tokens
from generated import dynamo_graph, generate_both

from dsv41_l2pf import Config
from dsv41_l2pf.compile.place import place_in_dynamo


class Model(torch.nn.Module):
    """One collective, then `step(model, x)`."""

    def __init__(self, step):
        super().__init__()
        torch.manual_seed(0)
        for name in "abc":
            setattr(self, name, torch.nn.Linear(HIDDEN, HIDDEN, bias=False))
        self.stack = torch.nn.Parameter(torch.randn(4, HIDDEN, HIDDEN))
        self.table = torch.nn.Embedding(32, HIDDEN)
        self.register_buffer("int8", torch.randint(-128, 127, (HIDDEN, HIDDEN), dtype=torch.int8))
        self.register_buffer("fp8", torch.randn(HIDDEN, HIDDEN).to(torch.float8_e4m3fn))
        self.register_buffer("scale", torch.rand(HIDDEN, 1))
        self.register_buffer("half_stack", torch.randn(4, HIDDEN, HIDDEN).to(torch.bfloat16))
        self.register_buffer("cache", torch.zeros(4, HIDDEN))
        self.experts = torch.nn.ParameterList(torch.randn(HIDDEN, HIDDEN) for _ in range(2))
        self.step = step

    def forward(self, x, ids):
        return self.step(self, emulated(self.a(x)), ids)


IDS = torch.tensor([0, 2, 1, 1])


def report_of(step):
    return place_in_dynamo(dynamo_graph(Model(step), tokens(), IDS), Config())


def weights_behind_the_collective(step):
    (window,) = report_of(step).windows
    return window.weights


READS = {
    "a linear": (lambda m, x, ids: m.b(x), ("b.weight",)),
    "two, in reading order": (lambda m, x, ids: m.b(m.c(x)), ("c.weight", "b.weight")),
    "one twice": (lambda m, x, ids: m.b(m.c(m.b(x))), ("b.weight", "c.weight")),
    "transposed": (lambda m, x, ids: x @ m.b.weight.t(), ("b.weight",)),
    "viewed": (lambda m, x, ids: x @ m.b.weight.view(-1, HIDDEN).reshape(HIDDEN, HIDDEN), ("b.weight",)),
    "sliced": (lambda m, x, ids: x @ m.b.weight[:, :8], ("b.weight",)),
    "split": (lambda m, x, ids: sum(x @ part for part in m.b.weight.chunk(2, dim=1)), ("b.weight",)),
    "cast": (lambda m, x, ids: x.bfloat16() @ m.b.weight.to(torch.bfloat16), ("b.weight",)),
    "made contiguous": (lambda m, x, ids: x @ m.b.weight.t().contiguous(), ("b.weight",)),
    "dequantised int8": (lambda m, x, ids: x @ (m.int8.float() * m.scale), ("int8", "scale")),
    "dequantised fp8": (lambda m, x, ids: x @ (m.fp8.to(torch.float32) * m.scale).t(), ("fp8", "scale")),
    "scaled behind": (lambda m, x, ids: (x @ m.int8.float()) * m.scale.view(-1), ("int8", "scale")),
    "concatenated": (lambda m, x, ids: x @ torch.cat([m.c.weight, m.b.weight]).t(), ("c.weight", "b.weight")),
    "a whole stack": (lambda m, x, ids: torch.bmm(x.expand(4, -1, -1), m.stack), ("stack",)),
    "slices of a stack": (lambda m, x, ids: x @ m.stack[0] @ m.stack[1], ("stack",)),
    "einsum": (lambda m, x, ids: torch.einsum("th,oh->to", x, m.b.weight), ("b.weight",)),
    "in place on a copy": (lambda m, x, ids: x @ m.b.weight.clone().mul_(2), ("b.weight",)),
    "as a bias": (lambda m, x, ids: torch.nn.functional.linear(x, m.c.weight, m.scale.view(-1)), ("c.weight", "scale")),
    "as a norm": (lambda m, x, ids: torch.nn.functional.rms_norm(x, (HIDDEN,), m.scale.view(-1)), ("scale",)),
}


@pytest.mark.parametrize(("step", "expected"), READS.values(), ids=READS)
def test_what_is_read_is_found(step, expected):
    assert weights_behind_the_collective(step) == expected


NOT_READ = {
    "nothing": lambda m, x, ids: x * 2,
    "its shape": lambda m, x, ids: x * m.b.weight.shape[0] + m.b.weight.size(1),
    "a tensor like it": lambda m, x, ids: x + torch.zeros_like(m.b.weight)[:4],
    "a buffer that is written": lambda m, x, ids: m.cache.add_(1) + x,
    "a view of a buffer that is written": lambda m, x, ids: m.cache.view(-1).copy_(x.view(-1)).view(4, -1) + m.cache,
}


@pytest.mark.parametrize("step", NOT_READ.values(), ids=NOT_READ)
def test_what_is_not_read_is_not_found(step):
    (window,) = report_of(step).windows
    assert (window.weights, window.reason) == ((), "no weight is read after it in its graph")


def test_rows_of_a_table_are_named_and_not_planned():
    report = report_of(lambda m, x, ids: m.table(ids) + m.b.weight[ids] + m.c.weight.index_select(0, ids) + x)
    assert report.windows[0].weights == ()
    assert report.rows == ("table.weight", "b.weight", "c.weight")


def test_a_tied_table_that_is_read_whole_is_planned():
    report = report_of(lambda m, x, ids: (x + m.table(ids)) @ m.table.weight.t())
    assert report.windows[0].weights == ("table.weight",)
    assert report.rows == ()


@pytest.mark.parametrize(
    ("step", "routed"),
    [
        (lambda m, x, ids: torch.bmm(x.unsqueeze(1), m.stack[ids]), ("stack",)),
        (lambda m, x, ids: torch._grouped_mm(x.bfloat16(), m.half_stack, ids.cumsum(0).int()).float(), ("half_stack",)),
        (lambda m, x, ids: x @ m.experts[1] + x @ m.experts[0], ("experts.1", "experts.0")),
    ],
    ids=["gathered", "grouped", "one by one"],
)
def test_routed_experts_are_named_and_not_planned(step, routed):
    report = report_of(lambda m, x, ids: m.b(step(m, x, ids)[..., :HIDDEN]))
    assert report.windows[0].weights == ("b.weight",)
    assert report.routed == routed
    assert "routed experts, not planned: " + ", ".join(routed) in str(report)


def test_each_window_ends_at_the_next_collective():
    report = report_of(lambda m, x, ids: m.c(emulated(m.b(x))))
    assert [window.weights for window in report.windows] == [("b.weight",), ("c.weight",)]


def test_the_budget_keeps_weights_in_reading_order():
    gm = dynamo_graph(Model(lambda m, x, ids: m.b(m.c(x))), tokens(), IDS)
    one_and_a_bit = HIDDEN * HIDDEN * 4 + 16
    (window,) = place_in_dynamo(gm, Config(budget_bytes=one_and_a_bit)).windows
    assert (window.weights, window.planned_bytes) == (("c.weight", "b.weight"), one_and_a_bit)
    (begin,) = gm.graph.find_nodes(op="call_function", target=torch.ops.dsv41.window_begin.default)
    assert begin.args[2] == one_and_a_bit


@pytest.mark.parametrize(
    ("budget_bytes", "weights", "reason"),
    [(1, ("c.weight",), ""), (0, (), "the budget is 0"), (HIDDEN * HIDDEN * 4, ("c.weight",), "")],
)
def test_weights_beyond_the_budget_are_left_out(budget_bytes, weights, reason):
    gm = dynamo_graph(Model(lambda m, x, ids: m.b(m.c(x))), tokens(), IDS)
    (window,) = place_in_dynamo(gm, Config(budget_bytes=budget_bytes)).windows
    assert (window.weights, window.reason) == (weights, reason)


def test_quantised_weights_compile_to_the_same_bits():
    def step(m, x, ids):
        return x @ (m.int8.float() * m.scale) + x @ (m.fp8.float() * m.scale).t()

    off, on = generate_both(Model(step), tokens(), IDS, fullgraph=True)
    assert on.reports[0].windows[0].weights == ("int8", "scale", "fp8")
    assert on.calls_besides_ours == off.calls
    assert torch.equal(on.output, off.output)
