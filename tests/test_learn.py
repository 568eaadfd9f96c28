"""The learner: which collectives it numbers, when their windows close, and which weights it records."""

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from gloo import join_group
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor

import dsv41_l2pf  # noqa: F401  (loads the operators)
from dsv41_l2pf.collectives import TABLE
from dsv41_l2pf.learn import LearnMode
from dsv41_l2pf.weights import WeightMap
from dsv41_l2pf.windows import Windows


class Log(Windows):
    """Writes down instead of calling the library: (begin, kind), (end,), (record, [(address, shape)])."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def open(self, input, kind):
        self.lines.append(("begin", kind))
        return True

    def close(self, output):
        self.lines.append(("end",))

    def record(self, weights):
        self.lines.append(("record", [(w.data_ptr(), tuple(w.shape)) for w in weights]))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(32, 16)
        self.a = torch.nn.Linear(16, 16, bias=False)
        self.b = torch.nn.Linear(16, 16, bias=False)
        self.register_buffer("state", torch.zeros(4, 16))
        self.requires_grad_(False)


@pytest.fixture(scope="module", autouse=True)
def group(tmp_path_factory):
    join_group(tmp_path_factory.mktemp("group"))
    yield
    dist.destroy_process_group()


@pytest.fixture
def model():
    return Model()


def watch(model, step, *, learning=True, skipped=None):
    log = Log()
    skipped = set() if skipped is None else skipped
    with torch.inference_mode(), LearnMode(log, WeightMap(model) if learning else None, skipped):
        step()
    return log.lines


def recorded(*weights):
    return ("record", [(w.data_ptr(), tuple(w.shape)) for w in weights])


BEGIN, END = ("begin", "all_reduce"), ("end",)


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


def test_weights_are_recorded_as_they_were_passed(model):
    x = torch.ones(4, 16)

    def step():
        torch.mm(x, model.a.weight.t())
        torch.mm(x[:, :8], model.b.weight[:8, :4].t().t())

    first, second = watch(model, step)
    assert first == ("record", [(model.a.weight.data_ptr(), (16, 16))])
    assert second == ("record", [(model.b.weight.data_ptr(), (8, 4))])


def test_arguments_in_reading_order_and_lists(model):
    assert watch(model, lambda: torch.cat([model.b.weight, model.a.weight])) == [
        recorded(model.b.weight, model.a.weight)
    ]


def test_looking_is_not_reading(model):
    def step():
        torch.empty_like(model.a.weight), model.a.weight.view(-1).unsqueeze(0), model.a.weight.new_zeros(3)
        model.a.weight.to(torch.float32), model.a.weight.contiguous(), model.a.weight.reshape(-1)

    assert watch(model, step) == []


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_a_view_that_must_copy_reads(model, mode):
    def step():
        with mode():
            model.a.weight.to(torch.bfloat16)
            model.b.weight.t().contiguous()

    lines = watch(model, step)
    assert [[address for address, _ in weights] for _, weights in lines] == [
        [model.a.weight.data_ptr()],
        [model.b.weight.data_ptr()],
    ]


def test_row_lookups_are_skipped_by_name(model):
    skipped = set()
    ids = torch.tensor([1, 2])

    def step():
        model.table(ids)
        model.a.weight.index_select(0, ids)
        model.b.weight[ids]

    assert watch(model, step, skipped=skipped) == []
    assert skipped == {"table.weight", "a.weight", "b.weight"}


def test_what_an_operator_writes_is_not_a_weight(model):
    def step():
        model.state.copy_(torch.ones(4, 16))
        model.state.add(1)
        torch.add(torch.ones(4, 16), 1, out=model.state)

    assert watch(model, step) == [recorded(model.state)]


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


def test_the_parts_of_a_tensor_subclass_are_weights(model):
    model.a.weight = torch.nn.Parameter(TwoTensor(torch.ones(16, 16), torch.ones(16, 16)), requires_grad=False)
    parts = (model.a.weight.a, model.a.weight.b)
    names = WeightMap(model)
    assert [names.name_of(part) for part in parts] == ["a.weight.a", "a.weight.b"]
    assert [names.name_at(part.data_ptr() + 8) for part in parts] == ["a.weight.a", "a.weight.b"]
    with torch.no_grad():
        log = Log()
        with LearnMode(log, names, set()):
            model.a.weight + 1
    assert log.lines == [recorded(parts[0]), recorded(parts[1])]


def test_compiled_parts_of_a_watched_model_still_compile(model):
    compiled = []

    def backend(graph, _inputs):
        compiled.append(graph)
        return graph.forward

    part = torch.compile(lambda x: model.a(x) + 1, backend=backend)
    lines = watch(model, lambda: part(torch.ones(4, 16)))
    assert len(compiled) == 1
    assert lines == [recorded(model.a.weight)]
