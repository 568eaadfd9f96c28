"""Weight-only quantisation as tensor subclasses do it: a payload of one byte an element and a scale a row."""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import return_and_correct_aliasing

aten = torch.ops.aten


class Quantised(torch.Tensor):
    """Looks like a float weight [out, in]; holds `payload` [out, in] in int8 or float8 and `scale` [out, 1]."""

    @staticmethod
    def __new__(cls, payload: torch.Tensor, scale: torch.Tensor):
        return torch.Tensor._make_wrapper_subclass(
            cls, payload.shape, strides=payload.stride(), dtype=scale.dtype, device=payload.device
        )

    def __init__(self, payload: torch.Tensor, scale: torch.Tensor):
        self.payload = payload
        self.scale = scale

    @classmethod
    def quantise(cls, weight: torch.Tensor, dtype: torch.dtype) -> Quantised:
        largest = 127 if dtype is torch.int8 else torch.finfo(dtype).max
        scale = weight.abs().amax(1, keepdim=True) / largest
        scaled = weight / scale
        return cls((scaled.round() if dtype is torch.int8 else scaled).to(dtype), scale)

    def __tensor_flatten__(self):
        return ["payload", "scale"], None

    @classmethod
    def __tensor_unflatten__(cls, parts, _context, _size, _stride):
        return cls(parts["payload"], parts["scale"])

    def __repr__(self):
        return f"Quantised({tuple(self.shape)}, {self.payload.dtype})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func in (aten.detach.default, aten.alias.default):
            return return_and_correct_aliasing(func, args, kwargs, cls(args[0].payload, args[0].scale))
        if func is aten.t.default:
            return cls(args[0].payload.t(), args[0].scale.t())
        if func is aten.mm.default:
            x, weight = args
            return torch.mm(x, weight.payload.to(x.dtype) * weight.scale)
        if func is aten.linear.default:  # under inference_mode it comes whole
            x, weight = args[:2]
            return torch.mm(x, (weight.payload.to(x.dtype) * weight.scale).t())
        raise NotImplementedError(f"Quantised: {func}")


def quantise_linears(model: torch.nn.Module, dtype: torch.dtype) -> torch.nn.Module:
    """Replaces the weights of all linears without a bias."""
    for module in model.modules():
        if isinstance(module, torch.nn.Linear) and module.bias is None:
            weight = Quantised.quantise(module.weight.detach(), dtype)
            module.weight = torch.nn.Parameter(weight, requires_grad=False)
    return model
