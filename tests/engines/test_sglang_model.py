"""A real SGLang model runner on two gloo ranks, with the plugin that SGLang's own loader has loaded."""

import types

import pytest
import sglang_rank
import torch
from gloo import run_on_two_ranks
from sglang_rank import DOWN_BYTES, GATE_UP_BYTES, LAYERS, LM_HEAD_BYTES, O_BYTES, QKV_BYTES, Rank

TOKENS = 2


def _equal(steps, expected):
    return len(steps) == len(expected) and all(map(torch.equal, steps, expected))


def _signatures(session):
    return session.prefetcher.status()["signatures"]


def _budgets(session):
    return [window["budget_bytes"] for signature in _signatures(session) for window in signature["windows"]]


def _update_in_place(rank, session):
    """The engine's own update with tensors, twice: doubled, and back. Budgets as a forward inside the update sees them."""
    name = "model.layers.0.self_attn.o_proj.weight"
    weight = dict(rank.model.named_parameters())[name]
    before, seen = weight.detach().clone(), []
    load = rank.model.load_weights

    def watched(named_tensors):
        seen.extend(_budgets(session))
        return load(named_tensors)

    rank.model.load_weights = watched
    # The loader takes its own part of the whole tensor: two equal halves fill both ranks alike.
    for tensor in (2 * before, before):
        whole = torch.cat((tensor, tensor), dim=1)
        done, message = rank.runner.weight_updater.update_weights_from_tensor([(name, whole)])
        assert done, message
        yield rank.generate()
    del rank.model.load_weights
    yield seen, torch.equal(weight, before)


def _sleep_and_wake(rank, session):
    """SGLang's own release and resume of the weights' memory, with a memory saver that looks at the budgets."""
    from sglang.srt.managers.io_struct import ReleaseMemoryOccupationReqInput, ResumeMemoryOccupationReqInput
    from sglang.srt.managers.scheduler_components.weight_updater import SchedulerWeightUpdaterManager as Manager
    from sglang.srt.runtime_context import get_parallel

    seen = []
    saver = types.SimpleNamespace(
        pause=lambda tag: seen.append((f"pause {tag}", _budgets(session))),
        resume=lambda tag: seen.append((f"resume {tag}", _budgets(session))),
    )
    manager = types.SimpleNamespace(
        scheduler=None,
        offload_tags=set(),
        memory_saver_adapter=saver,
        tp_worker=types.SimpleNamespace(model_runner=rank.runner),
        tp_cpu_group=get_parallel().tp_group.cpu_group,
        is_fully_idle=lambda **kwargs: True,
        flush_cache=lambda *args, **kwargs: True,
        _assert_weight_cache_inactive=lambda op: None,
    )
    torch.cuda.synchronize = lambda: None  # there is no GPU to wait for
    for tag in ("kv_cache", "weights"):
        Manager.release_memory_occupation(manager, ReleaseMemoryOccupationReqInput(tags=[tag]))
        Manager.resume_memory_occupation(manager, ResumeMemoryOccupationReqInput(tags=[tag]))
    return seen


def _run(rank):
    from sglang.srt.plugins import load_plugins

    load_plugins()
    loaded = Rank(rank, sglang_rank.MODEL_PATH)
    from dsv41_l2pf.integrations import sglang

    session = sglang.session()
    with session.suspended():
        expected = loaded.generate()
    result = {"not learned while suspended": _signatures(session) == []}
    result["equal"] = [_equal(loaded.generate(), expected) for _ in range(2)]
    (result["signature"],) = _signatures(session)
    names = {weight.data_ptr(): name for name, weight in loaded.model.named_parameters()}
    segments = session.prefetcher.plan_segments(TOKENS, "decode", loaded.model)
    result["segments"] = [(index, names.get(address), size) for index, address, size in segments]
    result["budgets"] = _budgets(session)

    changed, back, (seen, restored) = _update_in_place(loaded, session)
    result["update"] = {"changed": not _equal(changed, expected), "back": _equal(back, expected), "seen": seen}
    result["update"]["budgets after"] = _budgets(session)
    result["update"]["restored"] = restored
    result["sleep"] = _sleep_and_wake(loaded, session)
    result["equal after sleep"] = _equal(loaded.generate(), expected)
    (result["signature at the end"],) = _signatures(session)

    three = loaded.generate(num_requests=3)
    with session.suspended():
        result["equal for three"] = _equal(loaded.generate(num_requests=3), three)
    result["token counts"] = sorted(signature["num_tokens"] for signature in _signatures(session))
    result["summary"] = sglang.plugin.installation.summary()
    sglang.unregister()
    result["equal after unregister"] = _equal(loaded.generate(), expected)
    return result


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sglang_model")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DSV41_L2_PREFETCH", "1")
        patch.syspath_prepend(str(sglang_rank.STUBS))
        patch.setenv("L2PF_MODEL", sglang_rank.write_model(folder))
        return run_on_two_ranks(_run, folder, timeout_s=240)


def test_outputs_are_bit_equal(results):
    for result in results:
        assert result["equal"] == [True, True]
        assert result["equal for three"] and result["equal after sleep"] and result["equal after unregister"]


def test_every_collective_is_counted_once(results):
    """The embedding's all-reduce, two a layer, and the gather of the logits."""
    for result in results:
        signature = result["signature"]
        assert (signature["num_tokens"], signature["mode"], signature["state"]) == (TOKENS, "decode", "planned")
        assert signature["num_collectives"] == 1 + 2 * LAYERS + 1
        assert signature["reason"] == "" and signature["num_launched"] == signature["num_windows"]


def test_windows_hold_what_follows_their_collective(results):
    """The gather of the logits is the last collective and opens no window."""
    expected = []
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        expected += [
            (2 * layer, f"{prefix}.self_attn.qkv_proj.weight", QKV_BYTES),
            (2 * layer, f"{prefix}.self_attn.o_proj.weight", O_BYTES),
            (2 * layer + 1, f"{prefix}.mlp.gate_up_proj.weight", GATE_UP_BYTES),
            (2 * layer + 1, f"{prefix}.mlp.down_proj.weight", DOWN_BYTES),
        ]
    expected.append((2 * LAYERS, "lm_head.weight", LM_HEAD_BYTES))
    for result in results:
        assert result["segments"] == expected
        assert result["signature"]["num_windows"] == 2 * LAYERS + 1
        assert {window["kind"] for window in result["signature"]["windows"]} == {"all_reduce"}
        assert result["signature"]["planned_bytes"] == sum(size for _, _, size in expected)


def test_a_prefill_and_a_suspended_forward_are_not_learned(results):
    for result in results:
        assert result["not learned while suspended"]
        assert result["token counts"] == [2, 3]  # prompts have six tokens


def test_an_update_in_place_pauses_and_resumes(results):
    for result in results:
        update = result["update"]
        assert update["changed"] and update["back"] and update["restored"]
        assert len(update["seen"]) == 2 * len(result["budgets"]) and not any(update["seen"])
        assert update["budgets after"] == result["budgets"]


def test_asleep_no_window_is_open(results):
    for result in results:
        budgets = result["budgets"]
        assert result["sleep"] == [
            ("pause kv_cache", budgets),
            ("resume kv_cache", budgets),
            ("pause weights", [0] * len(budgets)),
            ("resume weights", [0] * len(budgets)),
        ]
        end = result["signature at the end"]
        assert end["num_launched"] == end["num_windows"]
        assert [window["budget_bytes"] for window in end["windows"]] == budgets


def test_every_target_is_hooked(results):
    for result in results:
        count = result["summary"].removeprefix("sglang 0.5.23: ").removesuffix(" targets")
        found, _, total = count.partition(" of ")
        assert found == total, result["summary"]
