"""Which tensors of a model under PyTorch's `fully_shard` live for one forward only."""

from __future__ import annotations

import torch


def transient_parameters(model: torch.nn.Module) -> set[int]:
    """The ids of gathered parameters that are freed when their module's forward ends: nothing can prefetch those.

    There is no public way to ask; a torch without these attributes has no parameter of the kind.
    """
    found: set[int] = set()
    for module in model.modules():
        state = module._get_fsdp_state() if hasattr(module, "_get_fsdp_state") else None
        group = getattr(state, "_fsdp_param_group", None)
        if getattr(group, "post_forward_mesh_info", None) is None:
            continue  # no group, or one that stays gathered
        for parameter in group.fsdp_params:
            for gathered in ("_unsharded_param", "_sharded_post_forward_param"):
                found.add(id(getattr(parameter, gathered, None)))
    return found
