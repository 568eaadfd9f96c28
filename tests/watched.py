"""A model that a learner watches, and what it calls the library for, written down."""

import pytest
import torch
import torch.distributed as dist
from gloo import join_group

import dsv41_l2pf  # noqa: F401  (loads the operators)
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
