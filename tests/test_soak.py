"""The soak for a moment, and that it would see what it is there to see."""

import pytest
import torch
from soak import MIB, Found, Soak


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_a_moment_of_soak_moves_nothing(device):
    with torch.no_grad():
        soak = Soak(device, seed=3)
        for change in soak.changes.values():
            change(), soak.run()
        found = soak.soak(2.0)
    assert found.problems() == []
    assert found.num_steps >= 20 * len(soak.changes)


def seen(**changes):
    calm = {"allocated_bytes": [100, 100], "used_bytes": [MIB, MIB], "collective_us": [8.0, 8.1]}
    return Found("a GPU", **{**calm, **changes}).problems()


def test_a_soak_tells_what_moved():
    assert seen() == []
    assert seen(num_different=2) == ["2 outputs differ"]
    assert seen(allocated_bytes=[100, 101]) == ["memory allocated grew from 100 to 101 bytes"]
    assert seen(used_bytes=[MIB, 18 * MIB]) == [f"memory used grew from {MIB} to {18 * MIB} bytes"]
    assert seen(collective_us=[8.0, 8.5]) == ["a collective takes 8.50 us, 8.00 before"]


def test_a_soak_sees_another_bit():
    with torch.no_grad():
        soak = Soak("cpu", seed=4, width=64, num_layers=1)
        soak.run()
        assert soak.found.num_different == 0
        soak.model.head.weight[0, 0] += 1
        soak.run()
    assert soak.found.num_different == 1
