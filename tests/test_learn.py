"""The learner: which collectives it numbers, when their windows close, and which weights it records."""

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from gloo import join_group
from quantised import quantise_linears
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor

import dsv41_l2pf  # noqa: F401  (loads the operators)
from dsv41_l2pf.collectives import TABLE
from dsv41_l2pf.learn import learn_mode
from dsv41_l2pf.sightings import Sightings
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

    def record_unplanned(self, num_bytes):
        self.lines.append(("unplanned", num_bytes))


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


def watch(model, step, *, learning=True, sightings=None):
    log = Log()
    with torch.inference_mode(), learn_mode(log, WeightMap(model) if learning else None, sightings or Sightings()):
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
    sightings = Sightings()
    ids = torch.tensor([1, 2])

    def step():
        model.table(ids)
        model.a.weight.index_select(0, ids)
        model.b.weight[ids]

    assert watch(model, step, sightings=sightings) == []
    assert sightings.only_rows == {"table.weight", "a.weight", "b.weight"}


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
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert watch(model, lambda: torch.ones(4, 16) @ model.a.weight) == []


def test_the_parts_of_a_tensor_subclass_are_weights(model):
    model.a.weight = torch.nn.Parameter(TwoTensor(torch.ones(16, 16), torch.ones(16, 16)), requires_grad=False)
    parts = (model.a.weight.a, model.a.weight.b)
    names = WeightMap(model)
    assert [names.name_of(part) for part in parts] == ["a.weight.a", "a.weight.b"]
    assert [names.name_at(part.data_ptr() + 8) for part in parts] == ["a.weight.a", "a.weight.b"]
    with torch.no_grad():
        log = Log()
        with learn_mode(log, names, Sightings()):
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


class Experts(torch.nn.Module):
    """A stack of experts that `step(module, x, ids)` reads, beside one that every token takes."""

    def __init__(self, step):
        super().__init__()
        self.gate_up_proj = torch.nn.Parameter(torch.randn(4, 16, 16).to(torch.bfloat16))
        self.bias = torch.nn.Parameter(torch.randn(4, 16).to(torch.bfloat16))
        self.step = step

    def forward(self, x, ids):
        return self.step(self, x, ids)


class Moe(torch.nn.Module):
    def __init__(self, step):
        super().__init__()
        self.experts = Experts(step)
        self.shared_experts = torch.nn.Linear(16, 16, bias=False, dtype=torch.bfloat16)
        self.requires_grad_(False)

    def forward(self, x, ids):
        return self.shared_experts(x) + self.experts(x, ids)


EXPERT_BYTES = 16 * 16 * 2


@pytest.mark.parametrize(
    ("step", "unplanned"),
    [
        (lambda m, x, ids: torch._grouped_mm(x, m.gate_up_proj, ids.cumsum(0).int()), [2 * EXPERT_BYTES]),
        (lambda m, x, ids: torch.bmm(x.unsqueeze(1), m.gate_up_proj[ids[:2]]).squeeze(1), [2 * EXPERT_BYTES]),
        (lambda m, x, ids: x @ m.gate_up_proj[2] + x @ m.gate_up_proj[0], [EXPERT_BYTES, EXPERT_BYTES]),
        (lambda m, x, ids: torch.nn.functional.linear(x, m.gate_up_proj[1], m.bias[1]), [EXPERT_BYTES, 32]),
    ],
    ids=["grouped", "gathered", "one by one", "with a bias"],
)
def test_routed_experts_are_named_and_their_bytes_counted(step, unplanned):
    moe, sightings = Moe(step), Sightings()
    x, ids = torch.ones(2, 16, dtype=torch.bfloat16), torch.tensor([0, 1, 0, 1])
    lines = watch(moe, lambda: moe(x, ids), sightings=sightings)
    assert lines == [recorded(moe.shared_experts.weight), *(("unplanned", num_bytes) for num_bytes in unplanned)]
    assert "experts.gate_up_proj" in sightings.routed
    assert sightings.read == {"shared_experts.weight"}


def test_a_stack_that_every_step_reads_whole_is_recorded():
    moe = Moe(lambda m, x, ids: torch.bmm(x.expand(4, 2, 16), m.gate_up_proj).sum(0))
    lines = watch(moe, lambda: moe(torch.ones(2, 16, dtype=torch.bfloat16), None))
    assert lines == [recorded(moe.shared_experts.weight), recorded(moe.experts.gate_up_proj)]


def test_experts_that_are_modules_are_routed():
    moe, sightings = Moe(None), Sightings()
    moe.experts = torch.nn.ModuleList(torch.nn.Linear(16, 16, bias=False) for _ in range(4))
    assert watch(moe, lambda: moe.experts[3](torch.ones(2, 16)), sightings=sightings) == [("unplanned", 16 * 16 * 4)]
    assert sightings.routed == {"experts.3.weight"}


def test_a_table_tied_to_the_head_is_recorded_where_it_is_read_whole(model):
    model.b.weight = model.table.weight
    sightings = Sightings()
    x = torch.ones(4, 16)

    def step():
        model.table(torch.tensor([1, 2]))
        dist.all_reduce(x)
        model.b(x)

    assert watch(model, step, sightings=sightings) == [BEGIN, END, recorded(model.table.weight)]
    assert (sightings.read, sightings.only_rows) == ({"table.weight"}, set())


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn], ids=["int8", "float8"])
def test_a_quantised_weight_is_its_payload_and_its_scale(model, dtype, mode):
    quantise_linears(model, dtype)
    payload, scale = model.a.weight.payload, model.a.weight.scale
    sightings, log, weights = Sightings(), Log(), WeightMap(model)
    with mode(), learn_mode(log, weights, sightings):
        model.a(torch.ones(4, 16))
    addresses = [(line, [address for address, _ in weights]) for line, weights in log.lines]
    assert addresses == [("record", [payload.data_ptr()]), ("record", [scale.data_ptr()])]
    assert sum(weight.num_bytes for weight in weights.weights() if weight.name in sightings.read) == 16 * 16 + 4 * 16
    assert sightings.read == {"a.weight.payload", "a.weight.scale"}


class Lora(torch.nn.Module):
    """A low-rank adapter around a frozen linear, as adapter libraries put it in place of one."""

    def __init__(self, base):
        super().__init__()
        self.base_layer = base
        self.lora_A = torch.nn.Linear(base.in_features, 4, bias=False)
        self.lora_B = torch.nn.Linear(4, base.out_features, bias=False)

    def forward(self, x):
        return self.base_layer(x) + self.lora_B(self.lora_A(x)) * 2.0


def test_a_lora_adapter_is_recorded_beside_its_base(model):
    model.a = Lora(model.a).requires_grad_(False)
    x = torch.ones(4, 16)

    def step():
        dist.all_reduce(x)
        model.a(x)

    weights = (model.a.base_layer.weight, model.a.lora_A.weight, model.a.lora_B.weight)
    assert watch(model, step) == [BEGIN, END, *map(recorded, weights)]


def test_several_weights_in_one_storage_keep_their_names(model):
    flat = torch.randn(2, 16, 16)
    model.a.weight.data, model.b.weight.data = flat[0], flat[1]
    sightings = Sightings()
    lines = watch(model, lambda: model.b(torch.ones(4, 16)), sightings=sightings)
    assert lines == [recorded(model.b.weight)]
    assert sightings.read == {"b.weight"}


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
