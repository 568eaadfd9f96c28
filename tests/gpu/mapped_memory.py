"""Device memory that can be unmapped and mapped again at the same address, as engines do with weights that sleep."""

from __future__ import annotations

import ctypes

import torch

_PINNED, _DEVICE, _READ_WRITE = 1, 1, 3


class _Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class _Properties(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("win32", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    ]


class _Access(ctypes.Structure):
    _fields_ = [("location", _Location), ("flags", ctypes.c_int)]


def _call(name: str, *args: object) -> None:
    result = getattr(ctypes.CDLL("libcuda.so.1"), name)(*args)
    assert result == 0, f"{name} returned {result}"


class MappedMemory:
    """One granule (2 MiB on GPUs of today) on the current device, mapped and filled with ones; never freed."""

    def __init__(self) -> None:
        torch.cuda.current_stream()  # makes the context
        device = _Location(_DEVICE, torch.cuda.current_device())
        self._properties = _Properties(type=_PINNED, location=device)
        self._access = _Access(device, _READ_WRITE)
        granularity = ctypes.c_size_t()
        _call("cuMemGetAllocationGranularity", ctypes.byref(granularity), ctypes.byref(self._properties), 0)
        self.num_bytes = granularity.value
        address = ctypes.c_uint64()
        # Twice the size: behind the last byte there is nothing.
        _call("cuMemAddressReserve", ctypes.byref(address), ctypes.c_size_t(2 * self.num_bytes), ctypes.c_size_t(0),
              ctypes.c_uint64(0), ctypes.c_uint64(0))
        self.address = address.value
        self.map()

    def map(self) -> None:
        handle = ctypes.c_uint64()
        size, address = ctypes.c_size_t(self.num_bytes), ctypes.c_uint64(self.address)
        _call("cuMemCreate", ctypes.byref(handle), size, ctypes.byref(self._properties), ctypes.c_uint64(0))
        _call("cuMemMap", address, size, ctypes.c_size_t(0), handle, ctypes.c_uint64(0))
        _call("cuMemRelease", handle)
        _call("cuMemSetAccess", address, size, ctypes.byref(self._access), ctypes.c_size_t(1))
        self.tensor().fill_(1)

    def unmap(self) -> None:
        torch.cuda.synchronize()
        _call("cuMemUnmap", ctypes.c_uint64(self.address), ctypes.c_size_t(self.num_bytes))

    def tensor(self) -> torch.Tensor:
        """All of it as bytes. torch knows nothing of its end."""
        return torch.as_tensor(self, device="cuda")

    @property
    def __cuda_array_interface__(self) -> dict:
        return {"shape": (self.num_bytes,), "typestr": "|u1", "data": (self.address, False), "version": 3}
