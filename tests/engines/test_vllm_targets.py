"""The table of hooked functions against the installed vLLM, as source and as loaded modules."""

import dataclasses
import importlib

import pytest

from dsv41_l2pf.integrations import vllm_targets
from dsv41_l2pf.integrations.targets import look_at, version_of

TARGETS = vllm_targets.TARGETS


def test_the_recorded_version_is_installed():
    assert version_of("vllm") == vllm_targets.VERSION


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.path)
def test_the_source_has_it_as_recorded(target):
    finding = look_at(target)
    assert finding.problem == "" and finding.parameters == target.parameters


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.path)
def test_the_loaded_module_has_it_as_recorded(target):
    importlib.import_module(target.module)
    finding = look_at(target)
    assert finding.problem == "" and finding.parameters == target.parameters


@pytest.mark.parametrize("target", [t for t in TARGETS if t.uses], ids=lambda target: target.path)
def test_a_changed_signature_fails_with_the_name(target):
    last = target.uses - 1
    changed = (*target.parameters[:last], "renamed", *target.parameters[last + 1 :])
    problem = look_at(dataclasses.replace(target, parameters=changed)).problem
    assert problem.startswith(f"{target.path}: expected parameters (") and "renamed" in problem
