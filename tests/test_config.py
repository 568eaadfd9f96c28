"""Config: what the environment may say, and what a bad value is told."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv41_l2pf.config import Config, variables


def test_an_empty_environment_gives_the_defaults():
    assert Config.from_env({}) == Config()
    assert Config() == Config(True, False, -1, True, "auto", "auto", 256, False, False)


@pytest.mark.parametrize(
    ("gate", "enabled", "strict", "requested"),
    [(None, True, False, False), ("0", False, False, False), ("1", True, False, True), ("strict", True, True, True)],
)
def test_the_gate(gate, enabled, strict, requested):
    config = Config.from_env({} if gate is None else {"DSV41_L2_PREFETCH": gate})
    assert (config.enabled, config.strict, config.requested) == (enabled, strict, requested)


def test_every_variable_is_read():
    config = Config.from_env(
        {
            "DSV41_L2_PREFETCH": "1",
            "DSV41_L2_PREFETCH_MB": "1.5",
            "DSV41_L2_PREFETCH_AG": "0",
            "DSV41_L2_PREFETCH_FORM": "lines",
            "DSV41_L2_PREFETCH_PLACEMENT": "side_stream",
            "DSV41_L2_PREFETCH_MAX_TOKENS": "7",
            "DSV41_L2_PREFETCH_NVTX": "1",
            "DSV41_L2_PREFETCH_IN_FLIGHT_KB": "128",
            "DSV41_L2_PREFETCH_TUNE": "1",
            "DSV41_L2_PREFETCH_TUNINGS": "tuned.json",
        }
    )
    assert config == Config(
        True, False, 3 << 19, False, "lines", "side_stream", 7, False, True, True, 128 << 10, True, "tuned.json"
    )


def test_the_process_environment_is_read_when_called(monkeypatch):
    monkeypatch.setenv("DSV41_L2_PREFETCH_MAX_TOKENS", "3")
    assert Config.from_env().max_tokens == 3


def test_an_empty_value_counts_as_unset():
    assert Config.from_env({"DSV41_L2_PREFETCH": "", "DSV41_L2_PREFETCH_MB": " "}) == Config()


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("DSV41_L2_PREFETCH", "yes", "0, 1, strict"),
        ("DSV41_L2_PREFETCH_MB", "-1", "auto"),
        ("DSV41_L2_PREFETCH_MB", "nan", "auto"),
        ("DSV41_L2_PREFETCH_MB", "inf", "auto"),
        ("DSV41_L2_PREFETCH_MB", "6MB", "auto"),
        ("DSV41_L2_PREFETCH_AG", "2", "0, 1"),
        ("DSV41_L2_PREFETCH_FORM", "Bulk", "auto, bulk, lines, load, load_keep, load_both"),
        ("DSV41_L2_PREFETCH_PLACEMENT", "graph", "auto, in_line, launch_order, side_stream"),
        ("DSV41_L2_PREFETCH_IN_FLIGHT_KB", "63", "KiB >= 64, 0 for no cap, or auto"),
        ("DSV41_L2_PREFETCH_IN_FLIGHT_KB", "-1", "KiB >= 64, 0 for no cap, or auto"),
        ("DSV41_L2_PREFETCH_IN_FLIGHT_KB", "1.5", "KiB >= 64, 0 for no cap, or auto"),
        ("DSV41_L2_PREFETCH_TUNE", "yes", "0, 1"),
        ("DSV41_L2_PREFETCH_MAX_TOKENS", "0", "a whole number >= 1"),
        ("DSV41_L2_PREFETCH_MAX_TOKENS", "1.5", "a whole number >= 1"),
        ("DSV41_L2_PREFETCH_MAX_TOKENS", "٣", "a whole number >= 1"),
    ],
)
def test_a_bad_value_names_variable_value_and_what_is_allowed(name, value, allowed):
    with pytest.raises(ValueError) as error:
        Config.from_env({name: value})
    assert str(error.value).startswith(f"{name}: expected ")
    assert allowed in str(error.value)
    assert str(error.value).endswith(f"got {value!r}")


@pytest.mark.parametrize(
    ("field", "value"), [("budget_bytes", -2), ("form", "x"), ("placement", "x"), ("max_tokens", 0)]
)
def test_a_bad_field_is_named(field, value):
    with pytest.raises(ValueError, match=f"{field}: expected .* got {value!r}"):
        Config(**{field: value})


def test_it_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().strict = True


@given(st.integers(0, 1 << 20))
def test_whole_mib_are_exact(mib):
    assert Config.from_env({"DSV41_L2_PREFETCH_MB": str(mib)}).budget_bytes == mib << 20


@given(st.text())
def test_any_text_is_either_a_budget_or_an_error_that_names_the_variable(text):
    try:
        budget_bytes = Config.from_env({"DSV41_L2_PREFETCH_MB": text}).budget_bytes
    except ValueError as error:
        assert str(error).startswith("DSV41_L2_PREFETCH_MB: ")
    else:
        assert -1 <= budget_bytes <= 1 << 40


def test_every_variable_says_what_it_does():
    effects = {variable.name: variable.effect for variable in variables({})}
    assert effects["DSV41_L2_PREFETCH"] == "engines leave us alone, attach() works"
    assert effects["DSV41_L2_PREFETCH_MB"] == "the library chooses"
    given = {"DSV41_L2_PREFETCH": "strict", "DSV41_L2_PREFETCH_MB": "1.5", "DSV41_L2_PREFETCH_AG": "0"}
    given |= {"DSV41_L2_PREFETCH_MAX_TOKENS": "8", "XDG_CACHE_HOME": "/cache", "OTHER": "x"}
    found = {variable.name: variable for variable in variables(given)}
    assert set(found) == set(effects)
    assert found["DSV41_L2_PREFETCH"].effect == "on, and a hook or window that is missing is an error"
    assert found["DSV41_L2_PREFETCH_MB"].effect == "at most 1.5 MiB a window"
    assert found["DSV41_L2_PREFETCH_AG"].effect == "all-gathers get no windows"
    assert found["DSV41_L2_PREFETCH_MAX_TOKENS"].effect == "forwards of more than 8 tokens are left alone"
    assert found["XDG_CACHE_HOME"].effect == "calibrations are kept in /cache/dsv41_l2pf/calibration"


def test_a_refused_variable_does_not_hide_the_others():
    given = {"DSV41_L2_PREFETCH": "yes", "DSV41_L2_PREFETCH_MB": "2", "DSV41_L2_PREFETCH_MIB": "2"}
    found = {variable.name: variable for variable in variables(given)}
    assert found["DSV41_L2_PREFETCH"].problem == "DSV41_L2_PREFETCH: expected one of 0, 1, strict, got 'yes'"
    assert found["DSV41_L2_PREFETCH_MB"].effect == "at most 2 MiB a window"
    unknown = found["DSV41_L2_PREFETCH_MIB"]
    assert unknown.is_unknown and unknown.problem.endswith("got 'DSV41_L2_PREFETCH_MIB'")
