"""WeightMap: names by storage and by address, and noticing that weights were replaced."""

import pytest
import torch

from dsv41_l2pf.weights import WeightMap


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(16, 16, bias=False)
        self.b = torch.nn.Linear(16, 16, bias=False)
        self.register_buffer("state", torch.zeros(4, 16))
        self.requires_grad_(False)


@pytest.fixture
def model():
    return Model()


def test_names_by_address(model):
    names = WeightMap(model)
    weight = model.a.weight
    assert names.name_at(weight.data_ptr()) == "a.weight"
    assert names.name_at(weight.data_ptr() + weight.nbytes - 1) == "a.weight"
    assert names.name_at(16) == "0x10"


@pytest.mark.parametrize("change", ["parameter", "data", "buffer", "module", "added"])
def test_the_map_notices_replaced_weights(model, change):
    names = WeightMap(model)
    new = torch.ones(16, 16)
    if change == "parameter":
        model.a.weight, name = torch.nn.Parameter(new, requires_grad=False), "a.weight"
    elif change == "data":
        model.a.weight.data, name = new, "a.weight"
    elif change == "buffer":
        model.state, name = new, "state"
    elif change == "module":
        model.b, name = torch.nn.Linear(16, 16, bias=False).requires_grad_(False), "b.weight"
        new = model.b.weight
    else:
        model.register_buffer("late", new)
        name = "late"
    assert names.name_of(new) is None
    names.refresh(model)
    assert names.name_of(new) == name


def test_the_map_notices_new_storages_where_the_old_ones_were(model):
    """As an allocator does with a model on its way to the host and back."""
    memory = torch.ones(16, 16).numpy()
    model.a.weight.data = torch.from_numpy(memory)
    names = WeightMap(model)
    new = torch.from_numpy(memory)
    model.a.weight.data = new
    names.refresh(model)
    assert names.name_of(new) == "a.weight"


def test_an_unchanged_model_is_not_walked_again(model, monkeypatch):
    names = WeightMap(model)
    monkeypatch.setattr(model, "named_parameters", lambda: pytest.fail("walked the model again"))
    names.refresh(model)
