"""b12x's real RoCE collectives on two ranks, called from one's own code and from inside SGLang's."""

import os

import b12x_rank
import pytest
import torch
from gloo import run_on_two_ranks

HIDDEN = 256


def _by_hand(rank):
    """`install()` for people who call b12x themselves: once before and once after b12x is imported."""
    if rank == 1:
        import b12x.comm.roce.roce_oneshot  # noqa: F401
    import dsv41_l2pf
    from dsv41_l2pf.integrations import b12x

    prefetcher = b12x.install(dsv41_l2pf.Prefetcher(dsv41_l2pf.Config(form="load")))
    runtime, plan, state = b12x_rank.make_runtime()
    x = b12x_rank.gpu(torch.full((4, HIDDEN), float(rank + 1)))
    weights = [torch.zeros(64, HIDDEN), torch.zeros(32, HIDDEN)]
    found = {}
    runtime.all_reduce(x, plan=plan)  # outside of a forward
    for _ in range(2):
        with prefetcher.forward(4):
            reduced = runtime.all_reduce(x, out=b12x_rank.gpu(torch.empty(4, HIDDEN)), stream=None, plan=plan)
            torch.ops.dsv41.record_weight([weights[0]])
            runtime._run_prepared_all_reduce(x, prepared=state)  # as b12x primes its kernels: no collective of the model
            gathered = runtime.all_gather(x, dim=0, plan=plan)
            torch.ops.dsv41.record_weight([weights[1]])
            for declined in (x.double(), x[:, :1]):
                with pytest.raises(ValueError, match="not eligible"):
                    runtime.all_reduce(b12x_rank.gpu(declined), plan=plan)
    (signature,) = prefetcher.status()["signatures"]
    found["reduced"], found["gathered"] = reduced.unique().tolist(), gathered.unique(dim=0)[:, 0].tolist()
    found["signature"] = signature
    found["segments"] = [
        (index, [w.data_ptr() for w in weights].index(address), size)
        for index, address, size in prefetcher.plan_segments(4)
    ]
    runtime.close()
    with prefetcher.forward(8):
        with pytest.raises(RuntimeError, match="closed"):
            runtime.all_reduce(x, plan=plan)
    found["closed"] = [s["num_collectives"] for s in prefetcher.status()["signatures"] if s["num_tokens"] == 8]
    b12x.uninstall()
    return found


def _inside_sglang(rank):
    """A build of SGLang whose NCCL communicator hands collectives to b12x: each is counted once."""
    os.environ["DSV41_L2_PREFETCH"] = "1"
    from sglang.srt.plugins import load_plugins

    load_plugins()
    from sglang.srt.distributed import parallel_state

    from dsv41_l2pf.integrations import sglang

    session = sglang.session()
    parallel_state.init_distributed_environment(world_size=2, rank=rank, local_rank=rank, backend="gloo")
    group = parallel_state.init_model_parallel_group(
        [[0, 1]], rank, "gloo", group_name="tp", use_pynccl=False, use_custom_allreduce=False, use_mscclpp=False,
        use_torch_symm_mem_allreduce=False,
    )  # fmt: skip
    runtime, plan, _ = b12x_rank.make_runtime()

    class Communicator:
        disabled = False

        def all_reduce(self, tensor):
            runtime.all_reduce(tensor, out=tensor, plan=plan)

    group.pynccl_comm = Communicator()
    weight = torch.nn.Linear(HIDDEN, 64, bias=False).requires_grad_(False)
    for _ in range(2):
        with session.forward(weight, 4, "decode"):
            x = b12x_rank.gpu(torch.full((4, HIDDEN), float(rank + 1)))
            group._all_reduce_in_place(x)
            torch.ops.dsv41.record_weight([weight.weight])
    (signature,) = session.prefetcher.status()["signatures"]
    return {"reduced": x.unique().tolist(), "signature": signature, "summary": sglang.plugin.installation.summary()}


def test_called_by_hand(tmp_path):
    for result in run_on_two_ranks(_by_hand, tmp_path):
        signature = result["signature"]
        assert result["reduced"] == [3.0] and result["gathered"] == [1.0, 2.0]
        assert (signature["num_collectives"], signature["num_windows"], signature["num_launched"]) == (2, 2, 2)
        assert [window["kind"] for window in signature["windows"]] == ["all_reduce", "all_gather"]
        assert result["segments"] == [(0, 0, 64 * HIDDEN * 4), (1, 1, 32 * HIDDEN * 4)]
        assert result["closed"] == [0]


def test_inside_sglang_it_is_counted_once(tmp_path):
    for result in run_on_two_ranks(_inside_sglang, tmp_path):
        signature = result["signature"]
        assert result["reduced"] == [3.0]
        assert (signature["num_collectives"], signature["num_windows"], signature["num_launched"]) == (1, 1, 1)
        assert " targets" in result["summary"] and "off" not in result["summary"]
