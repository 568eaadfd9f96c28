"""The learner on two gloo ranks: transformers models by their tp_plan, models under `fully_shard`; what it costs."""

import math
import time

import pytest
import torch
from gloo import run_on_two_ranks
from tensor_parallel_models import DEEPSEEK_V3, LLAMA, NUM_TOKENS, QWEN3, QWEN3_MOE, build, logits, shard, windows

FAMILIES = (LLAMA, QWEN3, QWEN3_MOE)


def _plan(prefetcher):
    """The names of the weights of each window, and the signature."""
    (found,) = prefetcher.status()["signatures"]
    by_collective = {}
    for index, address, _ in prefetcher.plan_segments(found["num_tokens"]):
        by_collective.setdefault(index, []).append(prefetcher.weight_name(address))
    return {index: tuple(names) for index, names in by_collective.items()}, found


def _transformers(_rank):
    import dsv41_l2pf

    result = {}
    with torch.inference_mode():
        for family in (*FAMILIES, DEEPSEEK_V3):
            model = shard(build(family))
            expected = logits(model)
            prefetcher = dsv41_l2pf.attach(model)
            outputs = [logits(model) for _ in range(3)]
            plan, signature = _plan(prefetcher)
            status = prefetcher.status()
            result[family] = {
                "plan": plan,
                "signature": signature,
                "rows": status["skipped_weights"],
                "routed": status["routed_weights"],
                "report": str(prefetcher.report()),
                "equal": all(torch.equal(output, expected) for output in outputs),
            }
            prefetcher.detach()
    return result


def test_transformers_models(tmp_path):
    for result in run_on_two_ranks(_transformers, tmp_path):
        for family in FAMILIES:
            found = result[family]
            assert found["plan"] == dict(enumerate(windows(family))), family
            # One all-reduce behind each attention and each MLP, and the gathering of the logits.
            assert (found["signature"]["num_tokens"], found["signature"]["num_collectives"]) == (NUM_TOKENS, 5)
            assert found["signature"]["num_launched"] == 4
            assert found["rows"] == ["model.embed_tokens.weight"]
            assert found["equal"], family
        stacks = [f"model.layers.{i}.mlp.experts.{name}" for i in range(2) for name in ("down_proj", "gate_up_proj")]
        assert result[QWEN3_MOE]["routed"] == stacks
        report = " ".join(result[QWEN3_MOE]["report"].split())
        assert (
            "not planned, a router chooses what is read: model.layers.*.mlp.experts.down_proj (2), "
            "model.layers.*.mlp.experts.gate_up_proj (2)"
        ) in report
        assert result[LLAMA]["routed"] == []

        found = result[DEEPSEEK_V3]
        assert found["equal"] and len(found["plan"]) == 3
        mlp = "model.layers.1.mlp"
        assert found["plan"][1] == tuple(f"{mlp}.shared_experts.{name}_proj.weight" for name in ("gate", "up", "down"))
        assert found["routed"] == [f"{mlp}.experts.{name}" for name in ("down_proj", "gate_up_proj")]


HIDDEN = 64


def _fully_shard(_rank):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    import dsv41_l2pf

    mesh = init_device_mesh("cpu", (2,))
    result = {}
    for reshards in (True, False):
        torch.manual_seed(0)
        model = torch.nn.Sequential(*(torch.nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(4)))
        x = torch.ones(4, HIDDEN)
        with torch.no_grad():
            expected = model(x)
            for layer in list(model)[:3]:
                fully_shard(layer, mesh=mesh, reshard_after_forward=reshards)
            fully_shard(model, mesh=mesh, reshard_after_forward=reshards)
            model(x)  # gathers for the first time
            prefetcher = dsv41_l2pf.attach(model)
            outputs = [model(x) for _ in range(4)]
        plan, signature = _plan(prefetcher)
        local = {
            name: (p.to_local() if hasattr(p, "to_local") else p).data_ptr() for name, p in model.named_parameters()
        }
        planned = [address for _, address, _ in prefetcher.plan_segments(4)]
        result[reshards] = {
            "plan": plan,
            "kinds": [window["kind"] for window in signature["windows"]],
            "alive": all(address in local.values() for address in planned),
            "equal": all(torch.equal(output, expected) for output in outputs),
        }
    return result


def test_models_under_fully_shard(tmp_path):
    for result in run_on_two_ranks(_fully_shard, tmp_path):
        # Shards are copied into the next all-gather, and those can be brought. What was gathered is freed behind its
        # layer; `3` belongs to the whole model, whose gathering comes before the forward that is watched.
        assert result[True]["plan"] == {0: ("1.weight",), 1: ("2.weight",)}
        assert set(result[True]["kinds"]) == {"all_gather"}
        # Gathered once and kept: no collective is left.
        assert result[False]["plan"] == {}
        for found in result.values():
            assert found["equal"] and found["alive"]


def _shortest(steps, rounds=25):
    """The shortest time of each step, taken in turns: other work on the machine only ever adds."""
    times = [math.inf] * len(steps)
    for _ in range(rounds):
        for i, step in enumerate(steps):
            begin = time.perf_counter()
            step()
            times[i] = min(times[i], time.perf_counter() - begin)
    return times


@pytest.mark.parametrize(("hidden", "most"), [(64, 6.0), (1024, 3.0)], ids=["all overhead", "some work"])
def test_a_watched_forward_takes_not_much_longer(hidden, most):
    """The bounds are wide: every operator here takes a few microseconds. What is aimed at is 2 for a real model."""
    import dsv41_l2pf

    def model():
        made = build(LLAMA, hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=2)
        for module in made.modules():
            if isinstance(module, torch.nn.Linear) and module.out_features == hidden:
                module.register_forward_hook(lambda _module, _args, x: torch.ops.dsv41.emulated_all_reduce(x, 0.0))
        return made

    alone, watched = model(), model()
    prefetcher = dsv41_l2pf.attach(watched)
    with torch.inference_mode():
        off, on = _shortest([lambda: logits(alone), lambda: logits(watched)])
    assert prefetcher.status()["signatures"][0]["num_windows"] > 0
    assert on / off < most, f"{on * 1e3:.2f} ms watched, {off * 1e3:.2f} ms alone"
