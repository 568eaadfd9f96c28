"""The code that Inductor generates: our operators survive, where they belong, and cost nothing besides themselves."""

import pytest
import torch
from compiled_chain import COLLECTIVES, HIDDEN, LAYERS, Chain, all_reduce, emulated, tokens
from generated import OURS, generate_both

pytestmark = pytest.mark.usefixtures("group")

GEMMS = {"mm", "addmm", "bias_addmm"}
COLLECTIVE_CALLS = {
    "emulated_all_reduce",
    "all_reduce_",
    "all_gather_into_tensor",
    "reduce_scatter_tensor",
    "all_to_all_single",
    "all_reduce_coalesced_",
}


def assert_every_window_is_in_order(calls, num_windows):
    """Producer, window_begin, collective, its wait, window_end, consumer; the join is last."""
    begins = [i for i, name in enumerate(calls) if name == "window_begin"]
    ends = [i for i, name in enumerate(calls) if name == "window_end"]
    assert len(begins) == len(ends) == num_windows
    for begin, end, earlier_end in zip(begins, ends, [0, *ends]):
        assert GEMMS & set(calls[earlier_end:begin]), "the producer comes first"
        inside = [name for name in calls[begin + 1 : end] if name not in ("kernel", "wait_tensor")]
        assert len(inside) == 1 and inside[0] in COLLECTIVE_CALLS, inside
    assert GEMMS & set(calls[ends[-1] :]), "the consumer comes last"
    assert calls[-1] == "join_windows" and calls.count("join_windows") == 1


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_default_mode(collective):
    model = Chain(collective)
    off, on = generate_both(model, tokens(), fullgraph=True)
    assert_every_window_is_in_order(on.calls, LAYERS)
    assert on.calls_besides_ours == off.calls
    assert torch.equal(on.output, off.output)
    assert [window.weights for window in on.reports[0].windows] == model.windows()


@pytest.mark.parametrize("collective", [all_reduce, emulated])
def test_max_autotune_without_graphs(collective):
    model = Chain(collective)
    off, on = generate_both(model, tokens(), mode="max-autotune-no-cudagraphs")
    assert_every_window_is_in_order(on.calls, LAYERS)
    assert [name in GEMMS for name in on.calls_besides_ours] == [name in GEMMS for name in off.calls]
    torch.testing.assert_close(on.output, off.output)


@pytest.mark.parametrize(
    "options",
    [
        {"reorder_for_compute_comm_overlap": True},
        {"reorder_for_peak_memory": False},
        {"allow_buffer_reuse": False},
    ],
    ids=lambda options: next(iter(options)),
)
def test_with_inductor_reordering(options):
    off, on = generate_both(Chain(all_reduce), tokens(), options=options)
    assert_every_window_is_in_order(on.calls, LAYERS)
    assert on.calls_besides_ours == off.calls
    assert torch.equal(on.output, off.output)


def test_identical_operators_stay_apart():
    class Repeated(torch.nn.Module):
        """The same weight after every collective, and collectives that send the same buffer."""

        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(HIDDEN, HIDDEN, bias=False)

        def forward(self, x):
            for _ in range(3):
                x = emulated(self.linear(x))
                x = emulated(x)
            return self.linear(x)

    off, on = generate_both(Repeated(), tokens())
    # Of two collectives in a row the first has nothing to prefetch.
    assert [on.calls.count(name) for name in OURS] == [3, 3, 1]
    assert on.calls_besides_ours == off.calls
    assert torch.equal(on.output, off.output)


def test_a_graph_after_a_break_has_windows_of_its_own():
    class Broken(Chain):
        def forward(self, x):
            x = self.layers[1](self.layers[0](x))
            torch._dynamo.graph_break()
            return self.head(self.layers[2](x))

    off, on = generate_both(Broken(emulated, num_layers=3), tokens())
    assert [report.num_windows for report in on.reports] == [1, 1]
    assert [report.num_collectives for report in on.reports] == [2, 1]
    assert on.reports[0].windows[1].reason == "no weight is read after it in its graph"
    assert on.calls.count("join_windows") == 2
    assert torch.equal(on.output, off.output)
