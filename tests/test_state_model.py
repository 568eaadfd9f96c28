"""Random interleavings of the operators against a plain model of the state table: they must agree after every step."""

import pytest
import torch
from fuzzing import LONG_SECONDS, search
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from state_model import Options, Process

import dsv41_l2pf as l2pf

ops = torch.ops.dsv41
REJECTED = (ValueError, RuntimeError)
X = torch.ones(2, 8)
STORAGE = torch.zeros(4096, dtype=torch.uint8)
ROWS = STORAGE.view(64, 64)
# Whole, parts of one another, the same through another view, none, and with holes.
WEIGHTS = [STORAGE, STORAGE[:1024], STORAGE[512:1024], ROWS[1], ROWS.t(), STORAGE[2048:2064], STORAGE[:0], ROWS[:, :8]]
MODES = ["decode", "decode/a", "target_verify", "extend"]
WINDOW_FIELDS = ("collective_index", "kind", "num_segments", "window_bytes", "budget_bytes", "form")

weights_lists = st.lists(st.sampled_from(WEIGHTS), max_size=3)
kinds = st.sampled_from(["all_reduce", "all_reduce", "all_gather", "broadcast"])
signatures = st.tuples(st.integers(1, 2), st.sampled_from([1, 1, 4]), st.sampled_from(MODES[:1] * 3 + MODES))
shares = st.sampled_from([0, 0, 0, 0.3, 0.8, 2])  # of what may be read before a window ends
budgets = st.sampled_from([-1, 0, 16, 96, 1 << 30])


def range_of(weight):
    """What the model is told of a weight: its range, None for holes, () for nothing."""
    if weight.numel() == 0:
        return ()
    return (weight.data_ptr(), weight.nbytes) if weight.t().is_contiguous() or weight.is_contiguous() else None


class Operators(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        while l2pf.status()["forward"] is not None:
            ops.end_forward()
        ops.l2_join(X)
        self.before = {entry["prefetcher"] for entry in l2pf.status()["prefetchers"]}
        (cpu,) = [device for device in l2pf.status()["devices"] if device["device"] == "cpu"]
        # The CPU's automatic budget: 0.6 of the last-level cache, more than all weights here.
        self.process = Process(auto_budget_bytes=1 << 20, unplanned_limit_bytes=cpu["l2_bytes"] // 2)
        self.unplanned_limit_bytes = cpu["l2_bytes"] // 2

    def teardown(self):
        while l2pf.status()["forward"] is not None:
            ops.end_forward()
        for _ in range(self.process.num_ignored_outside):
            ops.end_forward()
        for handle in self.process.prefetchers:
            ops.destroy_prefetcher(handle)
        ops.l2_join(X)

    def some_handle(self, index):
        handles = list(self.process.prefetchers)
        return handles[index % len(handles)]

    @initialize(budget=budgets, all_gather=st.booleans(), back_to_back=st.booleans())
    def first_prefetcher(self, budget, all_gather, back_to_back):
        self.create_prefetcher(budget, all_gather, "auto", 4, back_to_back)
        self.last_steps = []

    @precondition(lambda self: len(self.process.prefetchers) < 3)
    @rule(
        budget=budgets,
        all_gather=st.booleans(),
        form=st.sampled_from(["auto", "lines"]),
        max_tokens=st.sampled_from([1, 4]),
        back_to_back=st.booleans(),
    )
    def create_prefetcher(self, budget, all_gather, form, max_tokens, back_to_back):
        handle = ops.create_prefetcher(budget, all_gather, form, "auto", max_tokens, back_to_back, False)
        self.process.create(handle, Options(budget, all_gather, form, max_tokens, back_to_back))

    @precondition(lambda self: len(self.process.prefetchers) > 1)
    @rule(index=st.integers(0, 2))
    def destroy_prefetcher(self, index):
        handle = self.some_handle(index)
        ops.destroy_prefetcher(handle)
        del self.process.prefetchers[handle]
        with pytest.raises(REJECTED, match="expected the handle of a live prefetcher"):
            ops.begin_forward(handle, 1, 1, "decode")

    @rule(index=st.integers(0, 2), signature=signatures)
    def begin_forward(self, index, signature):
        handle = self.some_handle(index)
        assert ops.begin_forward(handle, *signature) == self.process.begin(handle, signature)

    @rule()
    def end_forward(self):
        ops.end_forward()
        self.process.end(aborted=False)

    @rule()
    def abort_forward(self):
        ops.abort_forward()
        self.process.end(aborted=True)

    @rule(kind=kinds, ends=st.booleans())
    def collective(self, kind, ends):
        ops.collective_begin(X, kind)
        if ends:
            ops.collective_end(X)
        self.process.collective(kind)

    @rule()
    def collective_end(self):
        ops.collective_end(X)

    @rule(weights=weights_lists)
    def record_weight(self, weights):
        ops.record_weight(weights)
        for weight in weights:
            if self.process.forward is not None and range_of(weight) != ():
                self.process.forward.record(range_of(weight))

    def run(self, index, prologue):
        self.begin_forward(index, (1, 1, "decode"))
        self.record_weight(prologue)
        for kind, weights, share, more_weights in self.last_steps:
            self.collective(kind, True)
            self.record_weight(weights)
            self.record_unplanned(share)
            self.record_weight(more_weights)
        self.end_forward()

    @precondition(lambda self: self.process.forward is None)
    @rule(
        index=st.integers(0, 2),
        prologue=weights_lists,
        steps=st.lists(st.tuples(kinds, weights_lists, shares, weights_lists), min_size=1, max_size=4),
    )
    def whole_forward(self, index, prologue, steps):
        self.last_steps = steps
        self.run(index, prologue)

    @precondition(lambda self: self.process.forward is None and self.last_steps)
    @rule(index=st.integers(0, 2), prologue=weights_lists, at=st.integers(0, 3), weights=weights_lists, kind=kinds)
    def nearly_the_same_forward(self, index, prologue, at, weights, kind):
        """What random single steps seldom come to."""
        self.set_window(index, (1, 1, "decode"), at, 16, "")  # which stays while the window is the same one
        step = self.last_steps[at % len(self.last_steps)]
        self.last_steps[at % len(self.last_steps)] = (kind, weights, *step[2:])
        self.run(index, prologue)

    @rule(share=shares)
    def record_unplanned(self, share):
        num_bytes = int(share * self.unplanned_limit_bytes)
        ops.record_unplanned(num_bytes)
        if self.process.forward is not None:
            self.process.forward.record_unplanned(num_bytes)

    @rule(index=st.integers(0, 2))
    def invalidate(self, index):
        handle = self.some_handle(index)
        ops.invalidate(handle)
        self.process.prefetchers[handle].invalidate()

    @rule(index=st.integers(0, 2))
    def pause(self, index):
        handle = self.some_handle(index)
        ops.pause(handle)
        self.process.pause(handle)

    @rule(index=st.integers(0, 2))
    def resume(self, index):
        handle = self.some_handle(index)
        if self.process.prefetchers[handle].num_pauses:
            ops.resume(handle)
            self.process.prefetchers[handle].num_pauses -= 1
        else:
            with pytest.raises(REJECTED, match="expected a paused prefetcher"):
                ops.resume(handle)

    @rule(
        index=st.integers(0, 2),
        signature=st.one_of(st.just((1, 1, "decode")), signatures),
        collective_index=st.integers(0, 3),
        budget=budgets,
        form=st.sampled_from(["", "lines", "load"]),
    )
    def set_window(self, index, signature, collective_index, budget, form):
        handle = self.some_handle(index)
        if self.process.prefetchers[handle].set_window(signature, collective_index, budget, form):
            ops.set_window(handle, *signature, collective_index, budget, form)
        else:
            with pytest.raises(REJECTED, match="expected a (signature with a plan|collective index that has a window)"):
                ops.set_window(handle, *signature, collective_index, budget, form)

    @rule(weights=weights_lists, budget=budgets)
    def l2_prefetch(self, weights, budget):
        ops.l2_prefetch(X, weights, budget)
        self.process.prefetch([range_of(weight) for weight in weights if range_of(weight)], budget)

    @rule()
    def l2_join(self):
        ops.l2_join(X)
        self.process.outstanding = False

    @rule(weights=weights_lists, budget=budgets)
    def window_begin(self, weights, budget):
        ops.window_begin(X, weights, budget)
        ops.window_end(X)
        if self.process.forward is None:
            self.process.prefetch([range_of(weight) for weight in weights if range_of(weight)], budget)

    @rule()
    def join_windows(self):
        ops.join_windows(X)
        if self.process.forward is None:
            self.process.outstanding = False

    @invariant()
    def they_agree(self):
        status = l2pf.status()
        assert status["forward"] == self.process.shown_forward()
        (cpu,) = [device for device in status["devices"] if device["device"] == "cpu"]
        assert (cpu["outstanding"], cpu["error"]) == (self.process.outstanding, "")
        found = {entry["prefetcher"]: entry for entry in status["prefetchers"]}
        assert set(found) - self.before == set(self.process.prefetchers)
        for handle, prefetcher in self.process.prefetchers.items():
            paused = prefetcher.num_pauses > 0
            assert found[handle]["paused"] is paused
            signatures = {(s["model"], s["num_tokens"], s["mode"]): s for s in found[handle]["signatures"]}
            assert set(signatures) == set(prefetcher.signatures)
            for signature, known in prefetcher.signatures.items():
                expected, entry = known.shown(paused), signatures[signature]
                entry["windows"] = [{name: window[name] for name in WINDOW_FIELDS} for window in entry["windows"]]
                assert {name: entry[name] for name in expected} == expected
                flat = [(w.collective_index, *part) for w in known.windows for part in w.ranges]
                planned = ops.plan_segments(handle, *signature)
                assert list(zip(planned[0::3], planned[1::3], planned[2::3])) == flat


@pytest.mark.timeout(300 + 2 * LONG_SECONDS)
def test_the_operators_do_what_the_state_table_says():
    ops.l2_join(X)  # so that the CPU is a device in use
    search(lambda how: run_state_machine_as_test(Operators, settings=how), max_examples=120, stateful_step_count=60)
