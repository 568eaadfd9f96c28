"""What becomes of plans and of the memory they hold when weights, models and prefetchers change or die."""

import gc
import resource
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch
from three_linears import HIDDEN, Model, X, segment, signature

import dsv41_l2pf as l2pf
from dsv41_l2pf import Config, attach

ROOT = Path(__file__).resolve().parent.parent
WEIGHT_BYTES = HIDDEN * HIDDEN * 4
ops = torch.ops.dsv41


@pytest.fixture
def model():
    return Model()


@pytest.fixture
def prefetcher(model):
    prefetcher = attach(model, Config())
    model(X), model(X)
    yield prefetcher
    prefetcher.detach()


def storage_watch(tensor):
    """Dies with the memory itself, whoever holds it through which tensor."""
    return weakref.ref(tensor.untyped_storage())


def replace_data(model):
    model.b.weight.data = torch.ones(HIDDEN, HIDDEN)


def replace_parameter(model):
    model.b.weight = torch.nn.Parameter(torch.ones(HIDDEN, HIDDEN), requires_grad=False)


def free(model):
    model.b.weight.untyped_storage().resize_(0)
    model.b.weight = torch.nn.Parameter(torch.ones(HIDDEN, HIDDEN), requires_grad=False)


def resize(model):
    model.b = torch.nn.Linear(HIDDEN, 2 * HIDDEN, bias=False).requires_grad_(False)
    model.c = torch.nn.Linear(2 * HIDDEN, HIDDEN, bias=False).requires_grad_(False)


def move_to_another_dtype(model):
    model.double().float()


def offload_and_bring_back(model):
    kept = {name: weight.clone() for name, weight in model.state_dict().items()}
    model.to("meta")
    model.load_state_dict(kept, assign=True)


def reload_in_place(model):
    model.load_state_dict({name: torch.randn_like(weight) for name, weight in model.state_dict().items()})


def merge_lora(model):
    model.b.weight += torch.randn(HIDDEN, 4) @ torch.randn(4, HIDDEN)


def merge_lora_into_a_new_weight(model):
    model.b.weight.data = model.b.weight.data + torch.randn(HIDDEN, 4) @ torch.randn(4, HIDDEN)


CHANGES = [
    replace_data,
    replace_parameter,
    free,
    resize,
    move_to_another_dtype,
    offload_and_bring_back,
    reload_in_place,
    merge_lora,
    merge_lora_into_a_new_weight,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("how", ["plain", "paused", "invalidated"])
def test_after_a_change_outputs_are_right_and_the_next_forward_plans_what_is_there(model, prefetcher, change, how):
    if how == "paused":
        prefetcher.pause()
    change(model)
    if how == "paused":
        prefetcher.resume()
    if how == "invalidated":
        prefetcher.invalidate()
    for _ in range(2):
        assert torch.equal(model(X), Model.forward(model, X))
    assert prefetcher.plan_segments(2) == [segment(0, model.b.weight), segment(1, model.c.weight)]
    found = signature(prefetcher)
    assert (found["state"], found["reason"], found["latched_off"]) == ("planned", "", False)
    assert found["num_launched"] == 2


@pytest.mark.parametrize("change", [replace_data, replace_parameter], ids=lambda change: change.__name__)
def test_replaced_weights_are_held_until_the_next_forward_and_no_longer(model, prefetcher, change):
    old = storage_watch(model.b.weight)
    change(model)
    gc.collect()
    address, num_bytes = prefetcher.plan_segments(2)[0][1:]
    assert num_bytes == WEIGHT_BYTES and address != model.b.weight.data_ptr(), "the plan still is of the old weight"
    model(X)
    gc.collect()
    assert old() is None


def test_invalidate_lets_go_of_weights_at_once(model, prefetcher):
    before = ops.status()
    replace_data(model)
    prefetcher.invalidate()
    assert prefetcher.plan_segments(2) == [] and before != ops.status()
    assert [entry["state"] for entry in prefetcher.status()["signatures"]] == ["unlearned"]


def by_hand(prefetcher, weight):
    """One forward whose only window is `weight`, which it does not read itself."""
    with prefetcher.forward(2):
        ops.collective_begin(X, "all_reduce")
        ops.collective_end(X)
        ops.record_weight([weight])
    return signature(prefetcher)


def test_a_window_of_an_emptied_storage_is_not_launched():
    prefetcher, weight = l2pf.Prefetcher(Config()), torch.ones(HIDDEN, HIDDEN)
    by_hand(prefetcher, weight)
    assert by_hand(prefetcher, weight)["num_launched"] == 1
    weight.untyped_storage().resize_(0)
    assert by_hand(prefetcher, weight)["num_launched"] == 0, "there is nothing to read"
    weight.untyped_storage().resize_(WEIGHT_BYTES)
    by_hand(prefetcher, weight)
    assert by_hand(prefetcher, weight)["num_launched"] == 1
    assert prefetcher.plan_segments(2) == [(0, weight.data_ptr(), WEIGHT_BYTES)]


def test_a_window_of_a_storage_that_shrank_is_not_launched():
    prefetcher, weight = l2pf.Prefetcher(Config()), torch.ones(HIDDEN, HIDDEN)
    by_hand(prefetcher, weight)
    half = weight[: HIDDEN // 2]
    weight.untyped_storage().resize_(WEIGHT_BYTES // 2)
    assert by_hand(prefetcher, half)["num_launched"] == 0
    assert by_hand(prefetcher, half)["num_launched"] == 1
    assert prefetcher.plan_segments(2) == [(0, half.data_ptr(), WEIGHT_BYTES // 2)]


def test_a_deleted_model_frees_its_weights_once_the_plan_goes():
    model, prefetcher = Model(), l2pf.Prefetcher(Config())
    with prefetcher.forward(2):
        ops.collective_begin(X, "all_reduce")
        ops.collective_end(X)
        ops.record_weight([model.b.weight])
    weight = weakref.ref(model.b.weight)
    num_segments = len(prefetcher.plan_segments(2))
    del model
    gc.collect()
    assert weight() is None and num_segments == len(prefetcher.plan_segments(2)) == 1
    with prefetcher.forward(2):  # prefetches memory that only the plan holds
        ops.collective_begin(X, "all_reduce")
        ops.collective_end(X)
    assert signature(prefetcher)["num_launched"] == 1
    assert prefetcher.plan_segments(2) == []


def test_a_model_that_dies_takes_its_hook_along():
    model = Model()
    prefetcher = attach(model, Config())
    model(X), model(X)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    prefetcher.pause(), prefetcher.resume(), prefetcher.invalidate(), prefetcher.detach()
    assert prefetcher.status()["attached"] is False


def test_a_prefetcher_that_dies_in_a_window_lets_the_forward_end():
    prefetcher = l2pf.Prefetcher(Config())
    by_hand(prefetcher, weight := torch.ones(HIDDEN, HIDDEN))
    handle = prefetcher.handle
    assert ops.begin_forward(handle, prefetcher.model_id(), 2, "decode")
    ops.collective_begin(X, "all_reduce")
    del prefetcher
    gc.collect()
    assert handle not in [entry["prefetcher"] for entry in l2pf.status()["prefetchers"]]
    ops.l2_prefetch(X, [weight])  # asks for the budget of a prefetcher that is gone
    ops.collective_end(X)
    ops.record_weight([weight])
    ops.collective_begin(X, "all_reduce")
    ops.collective_end(X)
    ops.end_forward()
    status = l2pf.status()
    assert status["forward"] is None and not any(device["outstanding"] for device in status["devices"])


def num_tensors():
    gc.collect()
    return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())


def test_relearning_often_keeps_memory_flat():
    """8 MiB of new weights a round: what is kept shows at once."""
    rounds, warm_up, num_bytes = 100, 10, 8 << 20
    prefetcher = l2pf.Prefetcher(Config())

    def relearn():
        weight = torch.ones(num_bytes // 4)
        by_hand(prefetcher, weight)
        by_hand(prefetcher, weight)
        if relearn.round % 3 == 0:
            prefetcher.invalidate()
        relearn.round += 1

    relearn.round = 0
    for _ in range(warm_up):
        relearn()
    tensors, peak_kib = num_tensors(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(rounds):
        relearn()
    assert num_tensors() == tensors
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak_kib < 4 * num_bytes >> 10
    assert len(prefetcher.status()["signatures"]) == 1
    assert len(prefetcher.plan_segments(2)) <= 1


def test_attaching_often_leaves_nothing_behind(model):
    def attach_once():
        prefetcher = attach(model, Config())
        model(X), model(X)
        prefetcher.detach()

    attach_once()
    gc.collect()
    before, tensors = len(l2pf.status()["prefetchers"]), num_tensors()
    for _ in range(100):
        attach_once()
    gc.collect()
    assert len(l2pf.status()["prefetchers"]) == before and num_tensors() == tensors
    assert "forward" not in vars(model)


AT_EXIT = """
import sys, threading, torch
sys.path.insert(0, "tests")
from three_linears import Model, X
import dsv41_l2pf as l2pf

model, kept = Model(), []
prefetcher = l2pf.attach(model, l2pf.Config())
model(X), model(X)
{state}
print("end of the program", flush=True)
"""
STATES_AT_EXIT = {
    "everything alive": "",
    "paused": "prefetcher.pause()",
    "a forward open": "torch.ops.dsv41.begin_forward(prefetcher.handle, 1, 2, 'decode')",
    "a window open": (
        "torch.ops.dsv41.begin_forward(prefetcher.handle, prefetcher.model_id(), 2, 'decode')\n"
        "torch.ops.dsv41.collective_begin(X, 'all_reduce')"
    ),
    "a bare prefetch outstanding": "torch.ops.dsv41.l2_prefetch(X, [torch.ones(1 << 24)])",
    # A daemon thread inside an operator of torch's own aborts a process at exit, so this one waits.
    "a forward open in a daemon thread": (
        "def wait_inside():\n"
        "    with prefetcher.forward(2):\n"
        "        torch.ops.dsv41.collective_begin(X, 'all_reduce')\n"
        "        opened.set(), threading.Event().wait()\n"
        "opened = threading.Event()\n"
        "threading.Thread(target=wait_inside, daemon=True).start()\n"
        "opened.wait()"
    ),
    "a cycle through the model": "model.itself = [prefetcher, model]",
    "an exception on the way": "sys.excepthook = lambda *_: print('end of the program'); model(torch.ones(1, 1))",
}


@pytest.mark.parametrize("state", STATES_AT_EXIT)
def test_the_interpreter_exits_cleanly_with(state):
    program = AT_EXIT.format(state=STATES_AT_EXIT[state])
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert result.returncode == (1 if "exception" in state else 0), result.stderr[-2000:]
    assert result.stdout == "end of the program\n" and "Traceback" not in result.stderr
