"""A real vLLM model on two gloo ranks, learned and captured by vLLM's real graph manager, plugin loaded by vLLM's loader."""

import types

import pytest
import torch
import vllm_rank
from gloo import run_on_two_ranks
from sglang_rank import DOWN_BYTES, GATE_UP_BYTES, LAYERS, O_BYTES, QKV_BYTES
from vllm_rank import Rank

TOKENS = 4


def _signatures(session):
    return session.prefetcher.status()["signatures"]


def _captured_by_v2(rank, session):
    """vLLM's CudaGraphManager captures two shapes; the status after each warm-up and after each capture."""
    from vllm.config.compilation import CUDAGraphMode
    from vllm.v1.worker.gpu import cudagraph_utils

    from dsv41_l2pf.integrations import vllm_graphs

    manager = object.__new__(cudagraph_utils.CudaGraphManager)
    manager.device, manager.pool, manager.graphs = torch.device("cpu"), None, {}
    manager.vllm_config, manager.cudagraph_mode = rank.config, CUDAGraphMode.FULL_AND_PIECEWISE
    manager.ubatch_runner = manager._max_full_descs_to_capture = manager._capture_mem_samples = None
    manager.use_breakable_cg = False
    Shape = cudagraph_utils.BatchExecutionDescriptor
    full = [Shape(CUDAGraphMode.FULL, tokens, tokens, uniform_token_count=1) for tokens in (8, TOKENS)]
    full.append(Shape(CUDAGraphMode.FULL, TOKENS, 2, uniform_token_count=2))
    full.append(Shape(CUDAGraphMode.FULL, TOKENS, TOKENS, uniform_token_count=1, num_active_loras=1))
    piecewise = [Shape(CUDAGraphMode.PIECEWISE, TOKENS, None)]
    manager._capture_descs = {CUDAGraphMode.FULL: full, CUDAGraphMode.PIECEWISE: piecewise}
    inside, outputs, planned, launched = [], [], {}, {}
    vllm_graphs.is_capturing = lambda: bool(inside)

    def entered(now):
        inside.append(1) if now else inside.clear()
        for signature in _signatures(session):
            key = signature["num_tokens"], signature["mode"]
            if now and signature["model"] not in launched:
                planned.setdefault(key, (signature, session.prefetcher.plan_segments(*key, signature["model"])))
            else:
                launched[key] = signature["num_launched"], signature["num_collectives"]

    def create(desc, warmup):
        def forward(mode):
            outputs.append((desc.num_tokens, rank.forward(desc.num_tokens)))

        return forward

    with vllm_rank.fake_cuda_graphs(entered):
        manager.capture(create)
    return planned, launched, outputs


def _run(rank, compiled):
    vllm_rank.use_cpu()
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    loaded = Rank(rank, vllm_rank.MODEL_PATH, compiled)
    from dsv41_l2pf.integrations import vllm

    session = vllm.session()
    expected = {tokens: loaded.forward(tokens) for tokens in (8, TOKENS)}
    nothing = session._prefetcher is None
    session.know(loaded.model)
    planned, launched, outputs = _captured_by_v2(loaded, session)
    names = {weight.data_ptr(): name for name, weight in loaded.model.named_parameters()}
    return {
        "compiled": not loaded.model.model.do_not_compile,
        "nothing outside of captures": nothing,
        "equal": [torch.equal(output, expected[tokens]) for tokens, output in outputs],
        "planned": {
            key: (signature, [(index, names.get(address), size) for index, address, size in segments])
            for key, (signature, segments) in planned.items()
        },
        "launched": launched,
        "off": session.off,
        "summary": vllm.plugin.installation.summary(),
    }


def _run_eager(rank):
    return _run(rank, compiled=False)


def _run_compiled(rank):
    return _run(rank, compiled=True)


@pytest.fixture(scope="module", params=[_run_eager, _run_compiled], ids=["eager", "compiled"])
def results(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("vllm_model")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DSV41_L2_PREFETCH", "1")
        patch.setenv("VLLM_CACHE_ROOT", str(folder))
        patch.setenv("L2PF_MODEL", vllm_rank.write_model(folder))
        found = run_on_two_ranks(request.param, folder, timeout_s=400)
    return types.SimpleNamespace(ranks=found, compiled=request.param is _run_compiled)


def test_outputs_are_bit_equal(results):
    for result in results.ranks:
        assert result["compiled"] == results.compiled and result["off"] == ""
        # A learning forward is not compiled, and here equal all the same: the backend runs the graph as it was traced.
        assert len(result["equal"]) == 4 * 3 + 2 and all(result["equal"])


def test_forwards_outside_of_captures_are_left_alone(results):
    for result in results.ranks:
        assert result["nothing outside of captures"]


def test_each_decode_graph_is_learned_before_its_capture(results):
    """Two collectives a layer and the embedding's; the logits are made outside of the graph."""
    expected = []
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        expected += [
            (2 * layer, f"{prefix}.self_attn.qkv_proj.weight", QKV_BYTES),
            (2 * layer, f"{prefix}.self_attn.o_proj.weight", O_BYTES),
            (2 * layer + 1, f"{prefix}.mlp.gate_up_proj.weight", GATE_UP_BYTES),
            (2 * layer + 1, f"{prefix}.mlp.down_proj.weight", DOWN_BYTES),
        ]
    keys = {(8, "decode"), (TOKENS, "decode"), (TOKENS, "target_verify/2-each"), (TOKENS, "decode/1-adapters")}
    for result in results.ranks:
        assert set(result["planned"]) == keys
        for signature, segments in result["planned"].values():
            assert segments == expected
            assert (signature["num_collectives"], signature["num_windows"]) == (1 + 2 * LAYERS, 2 * LAYERS)
            assert {window["kind"] for window in signature["windows"]} == {"all_reduce"}


def test_the_capture_opens_every_window(results):
    for result in results.ranks:
        assert set(result["launched"].values()) == {(2 * LAYERS, 1 + 2 * LAYERS)}
