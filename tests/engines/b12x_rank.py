"""b12x's real RoCE runtime on two CPU ranks: its constructor, policy, plans, locks and checks are its own.

Replaced: the RDMA proxy, and the two kernels, which here reduce and gather over gloo. What the module asks of CUDA (streams,
events, pinned memory) is answered by a stand-in, and its inputs say that they are on a GPU.
"""

import contextlib
import ctypes
import types

import torch
import torch.distributed as dist

GPU = torch.device("cuda", 0)


class GpuTensor(torch.Tensor):
    """A CPU tensor that says it is on the GPU."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    is_cuda = True
    device = GPU


def gpu(tensor: torch.Tensor) -> GpuTensor:
    return tensor.as_subclass(GpuTensor)


class _Torch:
    """The module's `torch`: the real one but for CUDA and for where new tensors are."""

    cuda = types.SimpleNamespace(
        Event=lambda: types.SimpleNamespace(record=lambda stream: None),
        device=lambda device: contextlib.nullcontext(),
        stream=lambda stream: contextlib.nullcontext(),
        current_stream=lambda device=None: "the stream",
        is_current_stream_capturing=lambda: False,
        synchronize=lambda device=None: None,
    )

    def __getattr__(self, name):
        return getattr(torch, name)

    def zeros(self, *shape, dtype=None, **_where):
        return torch.zeros(*shape, dtype=dtype)

    def empty(self, *shape, dtype=None, **_where):
        return gpu(torch.empty(*shape, dtype=dtype))

    def empty_like(self, tensor):
        return gpu(torch.empty(tensor.shape, dtype=tensor.dtype))


class _Proxy:
    traffic_class = 0

    def __init__(self, **_arguments):
        self.is_open = True

    def local_blob(self):
        return b"address"

    def connect(self, blobs, routes):
        assert blobs == [b"address"] * 2 and len(routes) == 2

    def start(self):
        pass

    def failed(self):
        return False

    def close(self):
        self.is_open = False


def _at(address: int, num_bytes: int) -> torch.Tensor:
    return torch.frombuffer((ctypes.c_char * num_bytes).from_address(address), dtype=torch.float32)


def _reduce(source, target, size_packs, num_bytes, *_rest):
    total = _at(source, num_bytes).clone()
    dist.all_reduce(total)
    _at(target, num_bytes).copy_(total)


def _gather(source, target, size_packs, num_bytes, row_packs, *_rest):
    assert row_packs == size_packs  # along dimension 0
    dist.all_gather_into_tensor(_at(target, 2 * num_bytes), _at(source, num_bytes))


def make_runtime(hidden_bytes: int = 1 << 16):
    """A runtime over the default group, and a plan that is prepared for it."""
    from b12x.comm.roce import _preparation, roce_oneshot

    roce_oneshot.torch = _Torch()
    roce_oneshot.Proxy, roce_oneshot._load_proxy_library = _Proxy, lambda: types.SimpleNamespace(roce_abi_version=lambda: 4)
    roce_oneshot.Layout = lambda world_size, slot_bytes: types.SimpleNamespace(
        recv_off=0, flag_off=64, send_off=128, ctrl_off=192, total_bytes=256, flag_stride=64, slots=2
    )
    roce_oneshot.RoceOneshotAllReduce._device_pointer = staticmethod(lambda address: address)
    runtime = roce_oneshot.RoceOneshotAllReduce(
        exchange_group=dist.group.WORLD, device=GPU, max_size=hidden_bytes, hca_names=("rdma0",)
    )
    query = _preparation.query_from_runtime(
        runtime,
        surface="AllReduce.all_reduce",
        call={"dtypes": ("float32",)},
        topology="roce_rdma",
        peer_hosts=("a", "b"),
    )
    plan = _preparation.plan(query, runtime=runtime)
    state = _preparation._PreparedRoce(runtime, {torch.float32: _reduce}, _gather)
    prepared = types.SimpleNamespace(closed=False, state=state, device=types.SimpleNamespace(ordinal=0))
    object.__setattr__(plan, "_prepared", prepared)
    return runtime, plan, state
