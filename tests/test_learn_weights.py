"""The learner: which weights it records, and as which bytes."""

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from quantised import quantise_linears
from torch.testing._internal.two_tensor import TwoTensor
from watched import BEGIN, END, Log, group, model, recorded, watch  # noqa: F401  (two are fixtures)

from dsv41_l2pf.learn import learn_mode
from dsv41_l2pf.sightings import Sightings
from dsv41_l2pf.weights import WeightMap


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
