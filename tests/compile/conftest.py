"""Fixtures of the compile tests: nothing compiled or reported before, no cache from an earlier run, one gloo rank."""

import os

# Before Inductor looks: one compile worker, this machine has few cores.
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"

import pytest
import torch
import torch.distributed as dist
from gloo import join_group

from dsv41_l2pf.compile import clear_reports


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()
    clear_reports()
    with torch.compiler.config.patch(force_disable_caches=True), torch.no_grad():
        yield


@pytest.fixture(scope="module")
def group(tmp_path_factory):
    join_group(tmp_path_factory.mktemp("group"))
    yield dist.group.WORLD
    dist.destroy_process_group()
