"""Every form in which a collective can stand in a graph: alone, with a wait, coalesced, hidden, bracketed already."""

import operator

import pytest
import torch
import torch.distributed as dist
from compiled_chain import HIDDEN, Chain, emulated, tokens
from generated import OURS, dynamo_graph, generate_both
from torch._subclasses.fake_tensor import FakeTensorMode

from dsv41_l2pf import Config
from dsv41_l2pf.collectives import TABLE
from dsv41_l2pf.compile.place import place_in_dynamo


class BWeight:
    """Where Dynamo would say that an input comes from."""

    name = "L['self']._modules['b']._parameters['weight']"


class Hand:
    """A graph of Dynamo's kind, made by hand: an input `x`, then what a test adds, then a matmul with a weight."""

    def __init__(self):
        self.graph = torch.fx.Graph()
        self.mode = FakeTensorMode()
        self.x = self.tensor(self.graph.placeholder("x"))
        self.weight = self.tensor(self.graph.placeholder("w"), HIDDEN, HIDDEN)
        self.weight._dynamo_source = BWeight()

    def tensor(self, node, *shape):
        with self.mode:
            node.meta["example_value"] = torch.empty(shape or (4, HIDDEN))
        return node

    def call(self, target, *args, **kwargs):
        return self.tensor(self.graph.call_function(target, args, kwargs))

    def end(self, result):
        self.graph.output((self.call(torch.matmul, result, self.weight),))
        return torch.fx.GraphModule(torch.nn.Module(), self.graph)


def place(hand, result, config=None):
    gm = hand.end(result)
    report = place_in_dynamo(gm, config or Config())
    gm.graph.lint()
    return report, list(gm.graph.nodes)


def ours(nodes):
    return [node for node in nodes if "dsv41" in str(node.target) and "emulated" not in str(node.target)]


def a_packet(name):
    namespace, _, op = name.partition("::")
    return getattr(getattr(torch.ops, namespace), op)


def arguments(hand, name, producer):
    """What an operator of the table is called with, by its schema: `producer` wherever it takes tensors."""
    found = {}
    for argument in a_packet(name).default._schema.arguments:
        kind = str(argument.type)
        if argument.has_default_value():
            continue
        if kind == "Tensor":
            found[argument.name] = producer
        elif kind == "List[Tensor]":
            found[argument.name] = [producer]
        elif kind == "List[List[Tensor]]":
            found[argument.name] = [[producer]]
        elif kind == "str":
            found[argument.name] = "sum"
        else:
            found[argument.name] = 0
    return found


@pytest.mark.parametrize("name", sorted(TABLE))
def test_every_operator_of_the_table_gets_a_window(name):
    hand = Hand()
    producer = hand.call(torch.relu, hand.x)
    collective = hand.call(a_packet(name), **arguments(hand, name, producer))
    result = producer
    if TABLE[name].waits:
        first = hand.call(operator.getitem, collective, 0) if "coalesced" in name else collective
        result = hand.call(torch.ops._c10d_functional.wait_tensor, first)
    report, nodes = place(hand, result)
    assert [(window.kind, window.weights, window.reason) for window in report.windows] == [
        (TABLE[name].kind, ("b.weight",), "")
    ]
    begin, *rest = ours(nodes)
    assert begin.target is torch.ops.dsv41.window_begin.default and begin.args == (producer, [hand.weight], -1)
    assert nodes.index(producer) < nodes.index(begin) < nodes.index(collective)
    end = [node for node in rest if node.target is torch.ops.dsv41.window_end.default]
    is_async = "async_op" in str(collective.target.default._schema)
    if is_async:
        assert end == []  # another graph waits for it
    else:
        assert nodes.index(collective) < nodes.index(end[0]) < nodes.index(nodes[-2])
    assert nodes[-2].target is torch.ops.dsv41.join_windows.default


def test_a_wait_much_later_ends_the_window():
    hand = Hand()
    producer = hand.call(torch.relu, hand.x)
    collective = hand.call(torch.ops._c10d_functional.all_reduce, producer, "sum", "0")
    other = hand.call(torch.neg, hand.x)
    wait = hand.call(torch.ops._c10d_functional.wait_tensor, collective)
    _, nodes = place(hand, hand.call(torch.add, wait, other))
    begin, end, _ = ours(nodes)
    assert nodes.index(begin) == nodes.index(collective) - 1
    assert nodes.index(end) == nodes.index(wait) + 1 and end.args == (wait,)


def test_a_collective_that_the_model_brackets_is_left_alone():
    def step(x):
        torch.ops.dsv41.collective_begin(x, "all_reduce")
        torch.ops.dsv41.emulated_all_reduce(x, 1.0)
        torch.ops.dsv41.collective_end(x)

    model = Chain(lambda x: (step(x), x)[1])
    report = place_in_dynamo(dynamo_graph(model, tokens()), Config())
    assert {window.reason for window in report.windows} == {"bracketed already"}
    assert report.num_windows == 0


def test_a_graph_is_edited_once():
    gm = dynamo_graph(Chain(emulated), tokens())
    assert place_in_dynamo(gm, Config()).num_windows == 2
    code = gm.code
    again = place_in_dynamo(gm, Config())
    assert (again.reason, again.num_windows, gm.code) == ("another backend of ours has edited it", 0, code)


@pytest.fixture(scope="module")
def engine_ops():
    """What vLLM and SGLang hide their collectives in, by name and schema."""
    libraries = []
    schemas = {
        "vllm": ["all_reduce(Tensor tensor, str group_name) -> Tensor", "fused_add(Tensor x) -> Tensor"],
        "sglang": ["inplace_all_reduce(Tensor(a!) tensor, str group_name) -> ()"],
    }
    for namespace, definitions in schemas.items():
        for definition in definitions:
            library = torch.library.Library(namespace, "FRAGMENT")
            library.define(definition)
            name = definition.partition("(")[0]
            in_place = definition.endswith("()")
            library.impl(name, (lambda x, *_: None) if in_place else (lambda x, *_: x + 0), "CompositeExplicitAutograd")
            libraries.append(library)
    yield
    for library in libraries:
        library._destroy()


def vllm_all_reduce(x):
    return torch.ops.vllm.all_reduce(x, "tp:0")


def sglang_all_reduce(x):
    torch.ops.sglang.inplace_all_reduce(x, "tp:0")
    return x


@pytest.mark.parametrize("collective", [vllm_all_reduce, sglang_all_reduce])
def test_a_collective_inside_an_engines_operator_is_left_to_its_hook(engine_ops, collective):
    off, on = generate_both(Chain(collective), tokens(), fullgraph=True)
    assert not set(OURS) & set(on.calls)
    assert on.calls == off.calls
    (report,) = on.reports
    assert (report.num_collectives, report.num_windows) == (2, 0)
    assert {window.reason for window in report.windows} == {"inside an engine's operator: left to the run-time hook"}
    assert torch.equal(on.output, off.output)


def test_weights_behind_an_engines_collective_are_not_given_to_an_earlier_window(engine_ops):
    class Mixed(Chain):
        def forward(self, x):
            x = emulated(self.layers[0].up(x))
            return self.head(vllm_all_reduce(self.layers[0].down(x)))

    report = place_in_dynamo(dynamo_graph(Mixed(emulated), tokens()), Config())
    assert [window.weights for window in report.windows] == [("layers.0.down.weight", "layers.0.down.bias"), ()]


def test_other_operators_of_an_engine_are_no_collectives(engine_ops):
    report = place_in_dynamo(dynamo_graph(lambda x: torch.ops.vllm.fused_add(x), tokens()), Config())
    assert report.windows == ()


def test_a_collective_in_a_nested_graph_is_reported(group):
    def inner(x):
        return x + dist._functional_collectives.all_reduce(x, "sum", dist.group.WORLD)

    def step(x):
        return torch.utils.checkpoint.checkpoint(inner, x, use_reentrant=False)

    report = place_in_dynamo(dynamo_graph(step, tokens()), Config())
    assert [(window.kind, window.reason) for window in report.windows] == [("nested", "in a nested graph")]
