"""The cap on bytes in flight on its way from the environment to a prefetcher."""

import pytest

import dsv41_l2pf
from dsv41_l2pf import Config, Prefetcher
from dsv41_l2pf.config import variables


@pytest.mark.parametrize(
    ("value", "num_bytes", "effect"),
    [
        ("", -1, "128 KiB where a GPU shares the host's memory, else no cap"),
        ("auto", -1, "128 KiB where a GPU shares the host's memory, else no cap"),
        ("0", 0, "no cap"),
        ("64", 64 << 10, "at most 64 KiB in flight"),
        ("1024", 1 << 20, "at most 1024 KiB in flight"),
    ],
)
def test_the_cap_reaches_the_prefetcher_and_doctor_says_what_it_does(value, num_bytes, effect):
    environ = {"DSV41_L2_PREFETCH_IN_FLIGHT_KB": value}
    prefetcher = Prefetcher(Config.from_env(environ))
    (entry,) = [e for e in dsv41_l2pf.status()["prefetchers"] if e["prefetcher"] == prefetcher.handle]
    assert entry["in_flight_bytes"] == num_bytes
    (variable,) = [v for v in variables(environ) if v.name == "DSV41_L2_PREFETCH_IN_FLIGHT_KB"]
    assert variable.effect == effect
