"""The learner on two gloo ranks: DTensor weights, PyTorch's own tensor parallelism, and its sequence-parallel form."""

import torch
from gloo import run_on_two_ranks

TOKENS, HIDDEN, INNER = 4, 64, 128


def _model():
    torch.manual_seed(0)
    layers = [torch.nn.Linear(HIDDEN, INNER), torch.nn.GELU(), torch.nn.Linear(INNER, HIDDEN)]
    return torch.nn.Sequential(*layers, torch.nn.Linear(HIDDEN, HIDDEN, bias=False))


def _decode(plan, x):
    """Learns, prefetches, and returns what a test needs to know, as plain data."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import parallelize_module

    import dsv41_l2pf

    model = parallelize_module(_model(), init_device_mesh("cpu", (2,)), plan)
    with torch.inference_mode():
        expected = model(x)
        prefetcher = dsv41_l2pf.attach(model)
        outputs = [model(x) for _ in range(3)]
    (signature,) = prefetcher.status()["signatures"]
    local = {
        name: (weight.data_ptr(), weight.nbytes)
        for name, weight in ((n, p.to_local() if hasattr(p, "to_local") else p) for n, p in model.named_parameters())
    }
    segments = prefetcher.plan_segments(signature["num_tokens"])
    return {
        "signature": signature,
        "segments": [(index, prefetcher.weight_name(address), address, size) for index, address, size in segments],
        "local": local,
        "equal": all(torch.equal(output, expected) for output in outputs),
        "whole": torch.allclose(expected, _model()(x), atol=1e-5),
    }


def _tensor_parallel(_rank):
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    return _decode({"0": ColwiseParallel(), "2": RowwiseParallel()}, torch.ones(TOKENS, HIDDEN))


def _sequence_parallel(_rank):
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    plan = {
        "0": ColwiseParallel(),
        "2": RowwiseParallel(output_layouts=Shard(0), use_local_output=False),
        "3": ColwiseParallel(input_layouts=Shard(0), output_layouts=Replicate()),
    }
    return _decode(plan, torch.ones(TOKENS, HIDDEN))


def test_tensor_parallel(tmp_path):
    for result in run_on_two_ranks(_tensor_parallel, tmp_path):
        signature = result["signature"]
        assert (signature["num_tokens"], signature["state"]) == (TOKENS, "planned")
        assert (signature["num_collectives"], signature["num_windows"], signature["num_launched"]) == (1, 1, 1)
        assert [window["kind"] for window in signature["windows"]] == ["all_reduce"]
        assert [(i, name, (address, size)) for i, name, address, size in result["segments"]] == [
            (0, "3.weight", result["local"]["3.weight"])
        ]
        sharded = [result["local"][name][1] for name in ("0.weight", "0.bias", "2.weight", "2.bias")]
        assert sharded == [HIDDEN * INNER * 2, INNER * 2, HIDDEN * INNER * 2, HIDDEN * 4]
        assert signature["prologue_bytes"] == sum(sharded)
        assert result["equal"] and result["whole"]


def test_sequence_parallel(tmp_path):
    for result in run_on_two_ranks(_sequence_parallel, tmp_path):
        signature = result["signature"]
        assert signature["num_collectives"] == 3
        assert [(w["collective_index"], w["kind"]) for w in signature["windows"]] == [(1, "all_gather")]
        assert [(i, name, (address, size)) for i, name, address, size in result["segments"]] == [
            (1, "3.weight", result["local"]["3.weight"])
        ]
        assert result["local"]["3.weight"][1] == HIDDEN * HIDDEN * 2
        assert result["equal"] and result["whole"]
