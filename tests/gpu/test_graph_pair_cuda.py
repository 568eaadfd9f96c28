"""A captured graph and its twin without windows, both real: every replay returns the same bits, and one of them stays."""

import logging

import pytest
import torch
from chain import NUM_TOKENS, Chain, all_reduce, ops
from graph_inspect import PREFETCH, capture, read_graph

from dsv41_l2pf.config import Config
from dsv41_l2pf.integrations.graph_pair import Kept, capture_pair
from dsv41_l2pf.integrations.session import Session
from dsv41_l2pf.live_tuning import NUM_ROUNDS, STEPS_A_TURN

pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("warm")]


def test_both_replay_to_the_same_bits_and_the_faster_one_stays(caplog):
    session, chain = Session(Config(tune=True), logging.getLogger("dsv41_l2pf")), Chain()
    model = torch.nn.ParameterList(chain.layers).requires_grad_(False)

    def forward():
        with session.forward(model, NUM_TOKENS, "decode"):
            x = chain.x
            for layer in chain.layers:
                ops.record_weight([layer])
                x = torch.nn.functional.linear(x, layer)
                all_reduce(x)
            ops.record_weight([chain.head])
            return torch.nn.functional.linear(x, chain.head)

    kept = {}

    def capture_one():
        graph, out = capture(forward)
        kept["graph"], kept["output"] = graph, out
        return Kept(graph, out)

    def put(found):
        kept["graph"], kept["output"] = found

    with torch.no_grad(), caplog.at_level(logging.INFO):
        for _ in range(2):
            expected = forward()
        capture_pair(session, capture_one, put)
        pair = kept["graph"]
        with_windows, without = pair._with_windows.graph, pair._without.graph
        assert len(read_graph(with_windows).kernels(PREFETCH)) == len(chain.layers)
        assert read_graph(without).kernels(PREFETCH) == []
        num_steps = 0
        while kept["graph"] is pair:
            kept["graph"].replay()
            num_steps += 1
            assert num_steps < 40 * NUM_ROUNDS * (1 + STEPS_A_TURN)
            if num_steps % 7 == 0:
                assert torch.equal(kept["output"], expected)
        (signature,) = session.prefetcher.status()["signatures"]
        verdict = "off by tune: " if kept["graph"] is without else "on by tune: "
        assert kept["graph"] in (with_windows, without) and signature["tuned"]["reason"].startswith(verdict)
        assert f"dsv41_l2pf: tuned tokens={NUM_TOKENS} mode=decode: {verdict}" in caplog.text
        for _ in range(20):
            kept["graph"].replay()
        assert torch.equal(kept["output"], expected)
