"""Prefetcher.forward, .collective and .wrap_collective: brackets around code that no hook can watch."""

import torch
from three_linears import X, segment, signature

import dsv41_l2pf
from dsv41_l2pf import Config, Prefetcher


def by_hand(prefetcher, weight, mode="decode"):
    with prefetcher.forward(4, mode) as counts:
        with prefetcher.collective(X, "all_gather"):
            pass
        torch.ops.dsv41.record_weight([weight])
    return counts


def test_explicit_brackets():
    prefetcher, weight = Prefetcher(Config()), torch.ones(32, 32)
    assert by_hand(prefetcher, weight) is True
    by_hand(prefetcher, weight)
    assert prefetcher.plan_segments(4) == [segment(0, weight)]
    found = signature(prefetcher, 4)
    assert [window["kind"] for window in found["windows"]] == ["all_gather"]
    assert found["num_launched"] == 1
    assert prefetcher.weight_name(weight.data_ptr()) == hex(weight.data_ptr())


def test_a_bad_argument_latches_off_and_the_collective_goes_on():
    prefetcher, reached = Prefetcher(Config()), []
    with prefetcher.forward(4), prefetcher.collective(X, "all_redcue"):
        reached.append("the collective")
    assert reached == ["the collective"]
    assert "expected `kind` to be one of all_reduce" in prefetcher.status()["reason"]


def test_other_modes_do_not_count():
    prefetcher = Prefetcher(Config())
    assert by_hand(prefetcher, X, "prefill") is False
    assert prefetcher.status()["signatures"] == []
    assert by_hand(prefetcher, X, "target_verify") is True


def test_all_gather_off_has_no_window():
    prefetcher, weight = Prefetcher(Config(all_gather=False)), torch.ones(32, 32)
    by_hand(prefetcher, weight), by_hand(prefetcher, weight)
    found = signature(prefetcher, 4)
    assert (found["num_collectives"], found["num_windows"], found["num_launched"]) == (1, 0, 0)


def test_wrapped_collectives_that_the_transport_declines_are_not_numbered():
    prefetcher, weight, calls = Prefetcher(Config()), torch.ones(32, 32), []

    def accepts(tensor, size, **_):
        if size < 0:
            raise LookupError("the transport does not know")
        return size < 10

    def all_reduce(tensor, size, stream=None):
        """Sums."""
        calls.append((size, dsv41_l2pf.status()["forward"]["num_collectives"]))
        return tensor

    wrapped = prefetcher.wrap_collective(all_reduce, "all_reduce", accepts=accepts)
    assert wrapped.__doc__ == "Sums."
    with prefetcher.forward(4):
        assert wrapped(X, 1) is X
        wrapped(X, 100)
        wrapped(X, -1)
        wrapped(X, size=2, stream="not a CUDA stream")
        torch.ops.dsv41.record_weight([weight])
    assert calls == [(1, 1), (100, 1), (-1, 1), (2, 2)]
    assert prefetcher.plan_segments(4) == [segment(1, weight)]


def test_wrapped_collective_looks_where_input_of_says(monkeypatch):
    prefetcher, anchors = Prefetcher(Config()), []
    monkeypatch.setattr(torch.ops.dsv41, "collective_begin", lambda x, kind: anchors.append((x.data_ptr(), kind)))
    first, second = torch.ones(4), torch.ones(4)
    wrapped = prefetcher.wrap_collective(lambda *_: None, "broadcast", input_of=lambda _first, second: second)
    wrapped(first, second)
    prefetcher.wrap_collective(lambda *_: None, "all_reduce")(None, [first, second])
    assert anchors == [(second.data_ptr(), "broadcast"), (first.data_ptr(), "all_reduce")]


def test_a_given_stream_is_entered_for_the_window(monkeypatch):
    class Stream:
        pass

    entered, current = [], []

    class entering:
        def __init__(self, stream):
            self.stream = stream

        def __enter__(self):
            entered.append(self.stream)

        def __exit__(self, *_):
            entered.pop()

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", entering)
    monkeypatch.setattr(torch.ops.dsv41, "collective_begin", lambda *_: current.append(("begin", entered[-1])))
    monkeypatch.setattr(torch.ops.dsv41, "collective_end", lambda *_: current.append(("end", entered[-1])))
    stream = Stream()

    def call(_x, stream):
        current.append(("call", list(entered)))

    Prefetcher(Config()).wrap_collective(call, "all_reduce")(X, stream=stream)
    assert current == [("begin", stream), ("call", []), ("end", stream)]
