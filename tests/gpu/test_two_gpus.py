"""Two GPUs in one process, and two ranks with a GPU each: the right device, stream and capture, whatever is current."""

import threading

import decode_checks as checks
import pytest
import torch
from chain import NUM_TOKENS, Chain, ops
from graph_inspect import EMULATED_COLLECTIVE, PREFETCH, assert_behind, assert_joined, capture, read_graph
from launch import DECODE_RANK, run_ranks

import dsv41_l2pf as l2pf

pytestmark = [pytest.mark.two_gpus, pytest.mark.usefixtures("warm")]

NUM_LAYERS = 4


@pytest.fixture(autouse=True)
def first_gpu_is_current():
    """And still is after every test."""
    with torch.no_grad(), torch.cuda.device(0):
        yield
        assert torch.cuda.current_device() == 0
    for index in range(2):
        torch.cuda.synchronize(index)


def chain_on(index: int) -> Chain:
    """A chain whose tensors are on GPU `index`, learned while that is not the current one."""
    with torch.cuda.device(index):
        ops.emulated_all_reduce(torch.ones(4, device="cuda"), 1.0)  # its peer's thread is not for a capture
        chain = Chain(NUM_LAYERS)
    return chain.learn()


def capture_on(index: int, chain: Chain):
    """Captures on a stream of GPU `index` while the other GPU is the current one."""

    def forward():
        with torch.cuda.device(1 - index):
            return chain.forward()

    return capture(forward, stream=torch.cuda.Stream(device=index))


def assert_nodes(graph: torch.cuda.CUDAGraph) -> None:
    seen = read_graph(graph)
    nodes = seen.kernels(PREFETCH)
    assert len(nodes) == NUM_LAYERS
    assert_behind(seen, nodes, seen.kernels(EMULATED_COLLECTIVE))
    assert_joined(seen, nodes[-1])


def test_eager_forwards_on_the_second_gpu_prefetch_there():
    chain = chain_on(1)
    out = chain.forward()
    signature = chain.signature()
    assert (signature["num_launched"], signature["latched_off"], signature["reason"]) == (NUM_LAYERS, False, "")
    assert out.device.index == 1 and torch.equal(out, chain.run())
    assert "cuda:1" in [device["device"] for device in l2pf.status()["devices"]]


def test_bare_prefetches_run_on_their_anchors_gpu():
    weights = [torch.ones(1 << 20, device=f"cuda:{index}") for index in range(2)]
    for weight in reversed(weights):
        ops.l2_prefetch(weight, [weight])
        ops.l2_join(weight)
        assert torch.cuda.current_device() == 0
    assert [device["error"] for device in l2pf.status()["devices"]] == [""] * len(l2pf.status()["devices"])


def test_a_refused_call_leaves_the_current_gpu_as_it_was():
    here, there = (torch.ones(64, 64, device=f"cuda:{index}") for index in range(2))
    with pytest.raises((ValueError, RuntimeError), match="weights on the anchor's device cuda:1, got one on cuda:0"):
        ops.l2_prefetch(there, [here])
    assert torch.cuda.current_device() == 0


def test_an_exception_of_the_model_leaves_the_current_gpu_as_it_was():
    chain = chain_on(1)
    with pytest.raises(ArithmeticError), chain.prefetcher.forward(NUM_TOKENS):
        chain.run(2, head=False)
        raise ArithmeticError("the model's own")
    assert torch.cuda.current_device() == 0
    assert torch.equal(chain.forward(), chain.run())


@pytest.mark.parametrize("index", [1, 0])
def test_a_capture_on_one_gpu_while_the_other_is_current(index):
    chain = chain_on(index)
    expected = chain.run()
    graph, out = capture_on(index, chain)
    assert_nodes(graph)
    for _ in range(3):
        out.zero_()
        torch.cuda.synchronize(index)
        with torch.cuda.device(index):
            graph.replay()
        torch.cuda.synchronize(index)
        assert torch.equal(out, expected)


def test_windows_of_a_live_graph_on_the_second_gpu_can_be_set():
    chain = chain_on(1)
    expected = chain.run()
    graph, out = capture_on(1, chain)
    for budget_bytes in (0, 4096, -1):
        chain.prefetcher.set_window(0, num_tokens=NUM_TOKENS, budget_bytes=budget_bytes)
        with torch.cuda.device(1):
            graph.replay()
        torch.cuda.synchronize(1)
        assert torch.equal(out, expected)
    assert chain.signature()["latched_off"] is False


def test_two_gpus_learn_capture_and_replay_beside_each_other():
    chains = [chain_on(index) for index in range(2)]
    expected = [chain.run() for chain in chains]
    captured = [capture_on(index, chain) for index, chain in enumerate(chains)]
    for _ in range(20):
        for index, (graph, _) in enumerate(captured):
            with torch.cuda.device(index):
                graph.replay()
    for index, (_, out) in enumerate(captured):
        torch.cuda.synchronize(index)
        assert torch.equal(out, expected[index])
    assert [chain.signature()["state"] for chain in chains] == ["frozen", "frozen"]


def test_a_thread_a_gpu():
    chains = [chain_on(index) for index in range(2)]
    expected = [chain.run() for chain in chains]
    outs, errors = [None, None], []

    def work(index):
        try:
            with torch.no_grad(), torch.cuda.device(index):
                for _ in range(50):
                    outs[index] = chains[index].forward()
                torch.cuda.synchronize(index)
        except Exception as error:  # noqa: BLE001  a thread's exception is nobody's unless it is kept
            errors.append(error)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert errors == []
    assert all(torch.equal(out, want) for out, want in zip(outs, expected))


def test_weights_of_the_other_gpu_are_in_no_window():
    x = torch.ones(NUM_TOKENS, 64, device="cuda:0")
    there = torch.ones(64, 64, device="cuda:1")
    prefetcher = l2pf.Prefetcher(l2pf.Config())
    for _ in range(2):
        with prefetcher.forward(NUM_TOKENS):
            ops.collective_begin(x, "all_reduce")
            ops.emulated_all_reduce(x, 1.0)
            ops.collective_end(x)
            ops.record_weight([there])
    (signature,) = prefetcher.status()["signatures"]
    assert (signature["num_windows"], signature["latched_off"]) == (0, False)
    assert signature["reason"] == "no weight was read after a collective"


def test_prefetching_goes_on_while_a_peer_reads_the_weights():
    if not torch.cuda.can_device_access_peer(0, 1):
        pytest.skip("these two GPUs cannot access each other's memory")
    chain = chain_on(1)
    expected = chain.run()
    graph, out = capture_on(1, chain)
    copies = [torch.empty_like(layer, device="cuda:0") for layer in chain.layers]
    for copy, layer in zip(copies, chain.layers):
        copy.copy_(layer)  # torch enables peer access here
    for _ in range(10):
        with torch.cuda.device(1):
            graph.replay()
        for copy, layer in zip(copies, chain.layers):
            copy.copy_(layer)
    for index in range(2):
        torch.cuda.synchronize(index)
    assert torch.equal(out, expected)
    assert all(torch.equal(copy.cpu(), layer.cpu()) for copy, layer in zip(copies, chain.layers))


@pytest.mark.parametrize("transport", ["nccl", "one_shot", "two_shot"])
def test_tensor_parallel_decode_over(transport, tmp_path):
    """The scenarios of test_nccl_one_gpu.py, a GPU a rank, over each transport."""
    results = run_ranks([DECODE_RANK, transport], tmp_path, on_one_gpu=False)
    checks.assert_on_and_off(results, checks.FROZEN)
    checks.assert_one_rank_latched_off(results)
    checks.assert_different_plans(results)
    checks.assert_relearned_and_recaptured(results, checks.FROZEN)
    checks.assert_tuned_alike(results)
    checks.assert_tuned_with_one_latched_off(results)
