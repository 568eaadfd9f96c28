"""Two gloo ranks, compiled: PyTorch's tensor parallelism with DTensor weights, and transformers by their tp_plan."""

import torch
from gloo import run_on_two_ranks
from tensor_parallel_models import LLAMA, QWEN3, QWEN3_MOE, build, logits, remove_backward_hooks, shard, windows

from dsv41_l2pf import compile_backend
from dsv41_l2pf.compile import reports

TOKENS, HIDDEN, INNER, LAYERS = 4, 64, 128, 2


def _chain():
    torch.manual_seed(0)
    blocks = [
        torch.nn.Sequential(torch.nn.Linear(HIDDEN, INNER), torch.nn.GELU(), torch.nn.Linear(INNER, HIDDEN))
        for _ in range(LAYERS)
    ]
    return torch.nn.Sequential(*blocks, torch.nn.Linear(HIDDEN, HIDDEN, bias=False))


def _dtensor(_rank):
    from generated import generate_both
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    plan = {f"{i}.{j}": style() for i in range(LAYERS) for j, style in ((0, ColwiseParallel), (2, RowwiseParallel))}
    model, x = _chain(), torch.ones(TOKENS, HIDDEN)
    with torch.no_grad(), torch.compiler.config.patch(force_disable_caches=True):
        whole = model(x)
        parallelize_module(model, init_device_mesh("cpu", (2,)), plan)
        off, on = generate_both(model, x, fullgraph=True)
    (report,) = on.reports
    return {
        "windows": [(window.kind, window.weights, window.reason) for window in report.windows],
        "calls": on.calls,
        "besides ours": on.calls_besides_ours == off.calls,
        "equal": torch.equal(on.output, off.output),
        "whole": torch.allclose(on.output, whole, atol=1e-5),
    }


def test_dtensor_weights(tmp_path):
    for result in run_on_two_ranks(_dtensor, tmp_path):
        assert result["windows"] == [
            ("all_reduce", ("1.0.bias", "1.0.weight", "1.2.bias", "1.2.weight"), ""),
            ("all_reduce", ("2.weight",), ""),
        ]
        middle = [name for name in result["calls"] if name not in ("mm", "addmm", "kernel")]
        assert middle == ["window_begin", "all_reduce_", "wait_tensor", "window_end"] * 2 + ["join_windows"]
        assert result["besides ours"] and result["equal"] and result["whole"]


def _transformers(_rank):
    found = {}
    with torch.no_grad(), torch.compiler.config.patch(force_disable_caches=True):
        for family in (LLAMA, QWEN3, QWEN3_MOE):
            model = shard(build(family, num_hidden_layers=1))
            remove_backward_hooks(model)
            eager = logits(model)
            torch.compiler.reset()
            compiled = logits(torch.compile(model, backend=compile_backend(), fullgraph=True))
            report = reports()[-1]
            found[family] = {
                "windows": [window.weights for window in report.windows if not window.reason],
                "without": [(window.kind, window.reason) for window in report.windows if window.reason],
                "rows": report.rows,
                "routed": report.routed,
                "close": torch.allclose(compiled, eager, atol=1e-5),
            }
    return found


def test_transformers_models(tmp_path):
    for result in run_on_two_ranks(_transformers, tmp_path, timeout_s=280):
        for family, found in result.items():
            assert found["windows"] == windows(family, num_layers=1), family
            # The logits are gathered, and the model is over.
            assert found["without"] == [("all_gather", "no weight is read after it in its graph")]
            assert found["rows"] == ("model.embed_tokens.weight",)
            assert found["close"], family
        assert result[LLAMA]["routed"] == ()
        experts = [f"model.layers.0.mlp.experts.{name}" for name in ("gate_up_proj", "down_proj")]
        assert result[QWEN3_MOE]["routed"] == tuple(experts)
