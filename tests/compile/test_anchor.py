"""What our operators pretend to write: never a reason to copy anything, and never a graph input of the model's."""

import pytest
import torch
from compiled_chain import HIDDEN, Chain, all_reduce, emulated, in_place, tokens
from generated import dynamo_graph, generate_both

from dsv41_l2pf import Config
from dsv41_l2pf.compile.place import place_in_dynamo

pytestmark = pytest.mark.usefixtures("group")


class Linears(torch.nn.Module):
    """forward calls `step(model, x)`."""

    def __init__(self, step):
        super().__init__()
        torch.manual_seed(0)
        self.a = torch.nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.b = torch.nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.step = step

    def forward(self, x):
        return self.step(self, x)


def sends_what_is_read_later(model, x):
    y = model.a(x)
    return model.b(all_reduce(y)) + y


def sends_a_view(model, x):
    y = model.a(x)
    return model.b(all_reduce(y.view(2, -1)).view(y.shape)) + y


def sends_a_transpose(model, x):
    y = model.a(x)
    return model.b(all_reduce(y.t()).t()) + y


def sends_a_slice(model, x):
    y = model.a(x)
    return model.b(all_reduce(y[:2])) + y[2:]


def sends_a_slice_in_place(model, x):
    y = model.a(x)
    emulated(y[:2])
    return model.b(y)


def sends_an_expanded_tensor(model, x):
    y = model.a(x).sum(0, keepdim=True)
    return model.b(all_reduce(y.expand(4, HIDDEN)))


def sends_a_fused_result(model, x):
    return model.b(all_reduce(torch.relu(model.a(x)) * 2))


def returns_the_collective(model, x):
    y = all_reduce(model.a(x))
    return model.b(y), y


def returns_the_collective_in_place(model, x):
    y = in_place(model.a(x))
    return y, model.b(y)


def sends_a_graph_input(model, x):
    return model.b(all_reduce(x)) + x


def sends_a_view_of_a_graph_input(model, x):
    return model.b(all_reduce(x.view(2, -1)).view(x.shape)) + x


def sends_a_weight(model, x):
    return model.b(x) + model.b(all_reduce(model.a.weight)).sum(0)


def returns_an_input(model, x):
    return x, model.b(emulated(model.a(x)))


@pytest.mark.parametrize(
    "step",
    [
        sends_what_is_read_later,
        sends_a_view,
        sends_a_transpose,
        sends_a_slice,
        sends_a_slice_in_place,
        sends_an_expanded_tensor,
        sends_a_fused_result,
        returns_the_collective,
        returns_the_collective_in_place,
        sends_a_graph_input,
        sends_a_view_of_a_graph_input,
        sends_a_weight,
        returns_an_input,
    ],
    ids=lambda step: step.__name__,
)
def test_no_anchor_costs_a_copy(step):
    x = tokens()
    off, on = generate_both(Linears(step), x, fullgraph=True)
    assert on.calls.count("window_begin") == on.calls.count("window_end") == 1
    begin, end = on.calls.index("window_begin"), on.calls.index("window_end")
    assert any("all_reduce" in name for name in on.calls[begin:end])
    assert on.calls_besides_ours == off.calls
    torch.testing.assert_close(on.output, off.output, rtol=0, atol=0)
    assert torch.equal(x, tokens())


def written_inputs(gm):
    """The graph inputs that an operator of ours pretends to write."""
    storages = {node.meta["example_value"].untyped_storage()._cdata for node in gm.graph.find_nodes(op="placeholder")}
    anchors = [
        node.args[0] for node in gm.graph.nodes if "dsv41.window" in str(node.target) or "join" in str(node.target)
    ]
    assert anchors
    return [
        anchor
        for anchor in anchors
        if anchor.meta.get("example_value") is not None
        and anchor.meta["example_value"].untyped_storage()._cdata in storages
    ]


@pytest.mark.parametrize("step", [sends_a_graph_input, sends_a_view_of_a_graph_input, sends_a_weight, returns_an_input])
def test_an_input_that_the_model_does_not_write_is_no_anchor(step):
    gm = dynamo_graph(Linears(step), tokens())
    assert place_in_dynamo(gm, Config()).num_windows == 1
    assert written_inputs(gm) == []


def test_an_input_that_the_collective_writes_is_the_anchor():
    def step(model, x):
        return model.b(in_place(x))

    off, on = generate_both(Linears(step), tokens())
    assert on.calls_besides_ours == off.calls
    assert torch.equal(on.output, off.output)
    x, y = tokens(), tokens()
    torch.compile(Linears(step))(x)
    torch.compile(Linears(step), backend="dsv41")(y)
    assert torch.equal(x, y)


def test_buffers_are_as_many_and_as_large():
    """The peak of a graph's own memory, as Inductor allocates and frees it."""

    def allocations(code):
        return [line.split("= ", 1)[1] for line in code[0].splitlines() if "empty_strided_cpu(" in line and "=" in line]

    off, on = generate_both(Chain(all_reduce), tokens())
    assert allocations(on.code) == allocations(off.code)
    assert on.code[0].count("# reuse") == off.code[0].count("# reuse")
