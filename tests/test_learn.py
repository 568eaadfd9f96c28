"""The learner: which collectives it numbers, and when their windows close."""

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch._subclasses.fake_tensor import FakeTensorMode
from watched import BEGIN, END, group, model, recorded, watch  # noqa: F401  (two are fixtures)

from dsv41_l2pf.collectives import TABLE


def test_a_synchronous_collective_closes_at_once(model):
    x = torch.ones(4, 16)

    def step():
        dist.all_reduce(x)
        model.a(x)

    assert watch(model, step) == [BEGIN, END, recorded(model.a.weight)]


def test_an_asynchronous_collective_closes_before_the_first_use_of_its_result(model):
    x, other = torch.ones(4, 16), torch.ones(4, 16)

    def step():
        work = dist.all_reduce(x, async_op=True)
        view = x.view(64)  # only looks
        model.a(other)  # the reason why it is asynchronous
        work.wait()
        view.add(1)
        model.b(x)

    assert watch(model, step) == [BEGIN, recorded(model.a.weight), END, recorded(model.b.weight)]


def test_an_open_window_closes_at_the_next_collective_and_at_the_end(model):
    x, y = torch.ones(16), torch.ones(16)

    def step():
        works = [dist.all_reduce(x, async_op=True), dist.all_reduce(y, async_op=True)]
        for work in works:
            work.wait()

    assert watch(model, step) == [BEGIN, END, BEGIN, END]


def test_a_functional_collective_closes_after_its_wait(model):
    x = torch.ones(4, 16)

    def step():
        y = torch.ops._c10d_functional.all_reduce(x, "sum", dist.group.WORLD.group_name)
        model.a(x)
        y = torch.ops._c10d_functional.wait_tensor(y)
        model.b(y)

    assert watch(model, step) == [BEGIN, recorded(model.a.weight), END, recorded(model.b.weight)]


def test_an_async_collective_tensor_waits_for_itself(model):
    x = torch.ones(4, 16)

    def step():
        model.a(functional.all_reduce(x, "sum", dist.group.WORLD))

    assert watch(model, step) == [BEGIN, END, recorded(model.a.weight)]


def test_coalesced_functional_collectives_are_one(model):
    def step():
        tensors = functional.all_reduce_coalesced([torch.ones(4, 16), torch.ones(4, 16)], "sum", dist.group.WORLD)
        model.a(tensors[0])
        tensors[1].add(1)

    assert watch(model, step) == [BEGIN, END, recorded(model.a.weight)]


@pytest.mark.parametrize(
    ("kind", "call"),
    [
        ("all_gather", lambda x: dist.all_gather([torch.empty_like(x)], x)),
        ("all_gather", lambda x: dist.all_gather_into_tensor(torch.empty_like(x), x)),
        ("all_gather", lambda x: functional.all_gather_tensor(x, 0, dist.group.WORLD).add(1)),
        ("reduce_scatter", lambda x: functional.reduce_scatter_tensor(x, "sum", 0, dist.group.WORLD).add(1)),
        ("all_to_all", lambda x: functional.all_to_all_single(x, None, None, dist.group.WORLD).add(1)),
        ("broadcast", lambda x: dist.broadcast(x, 0)),
        ("broadcast", lambda x: functional.broadcast(x, 0, dist.group.WORLD).add(1)),
        ("all_reduce", lambda x: torch.ops.dsv41.emulated_all_reduce(x, 1.0)),
    ],
)
def test_kinds(model, kind, call):
    assert watch(model, lambda: call(torch.ones(4, 16))) == [("begin", kind), END]


def test_send_and_barrier_are_not_numbered(model):
    assert watch(model, dist.barrier) == []


def test_a_model_that_brackets_its_collective_is_not_numbered_twice(model):
    x = torch.ones(4, 16)

    def step():
        torch.ops.dsv41.collective_begin(x, "all_reduce")
        dist.all_reduce(x)
        torch.ops.dsv41.collective_end(x)
        dist.all_reduce(x)

    assert watch(model, step) == [BEGIN, END]


def test_every_operator_in_the_table_has_the_arguments_that_the_table_names():
    schemas = {schema.name: schema for schema in torch._C._jit_get_all_schemas() if schema.name in TABLE}
    assert set(schemas) == set(TABLE)
    for name, schema in schemas.items():
        arguments = {argument.name for argument in schema.arguments}
        assert TABLE[name].input in arguments, name
        assert TABLE[name].output in arguments | {""}, name


def test_a_capturing_forward_numbers_and_does_not_record(model):
    x = torch.ones(4, 16)

    def step():
        dist.all_reduce(x)
        model.a(x)

    assert watch(model, step, learning=False) == [BEGIN, END]


def test_shapes_without_data_are_left_alone(model):
    def step():
        torch.ones(4, 16, device="meta") @ torch.ones(16, 16, device="meta")
        with FakeTensorMode(allow_non_fake_inputs=True):
            torch.ones(4, 16) @ model.a.weight

    assert watch(model, step) == []
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert watch(model, lambda: torch.ones(4, 16) @ model.a.weight) == []


def test_compiled_parts_of_a_watched_model_still_compile(model):
    compiled = []

    def backend(graph, _inputs):
        compiled.append(graph)
        return graph.forward

    part = torch.compile(lambda x: model.a(x) + 1, backend=backend)
    lines = watch(model, lambda: part(torch.ones(4, 16)))
    assert len(compiled) == 1
    assert lines == [recorded(model.a.weight)]


def test_an_open_window_of_compiled_code_brings_weights_that_no_operator_shows(model):
    x = torch.ones(4, 16)

    def step():
        torch.ops.dsv41.window_begin(x, [model.a.weight, model.b.weight])
        y = torch.ops._c10d_functional.all_reduce(x, "sum", dist.group.WORLD.group_name)
        torch.ops._c10d_functional.wait_tensor(y)
        torch.ops.dsv41.window_end(y)

    assert watch(model, step) == [BEGIN, END, recorded(model.a.weight, model.b.weight)]
    assert watch(model, step, learning=False) == [BEGIN, END]


def test_a_window_of_compiled_code_without_a_collective_in_sight_brings_nothing(model):
    x = torch.ones(4, 16)

    def step():
        torch.ops.dsv41.window_begin(x, [model.a.weight])
        torch.ops.dsv41.window_end(x)

    assert watch(model, step) == []


def test_dynamo_does_not_compile_the_learner(model):
    """Between two graphs Dynamo watches whatever Python runs, and the learner runs at every operator."""

    def step(x):
        y = torch.sin(x)
        torch._dynamo.graph_break()
        dist.all_reduce(y)
        return model.a(y)

    compiled = []

    def backend(graph, _inputs):
        compiled.append(graph.code)
        return graph.forward

    part = torch.compile(step, backend=backend)
    torch._dynamo.utils.counters.clear()
    assert watch(model, lambda: part(torch.ones(4, 16))) == [BEGIN, END, recorded(model.a.weight)]
    assert len(compiled) == 2
    assert not [reason for reason in torch._dynamo.utils.counters["graph_break"] if "learn" in reason]
