"""The tables of hooked functions against the sources of wheels that are not installed (L2PF_ENGINE_SOURCES)."""

import os
from pathlib import Path

import pytest

from dsv41_l2pf.integrations import b12x_targets, sglang_targets, vllm_targets
from dsv41_l2pf.integrations.targets import look_at_all

SOURCES = Path(os.environ["L2PF_ENGINE_SOURCES"])
# vLLM's wheel does not hold FlashInfer.
TABLES = {
    "sglang": sglang_targets.TARGETS + b12x_targets.TARGETS,
    "vllm": tuple(target for target in vllm_targets.TARGETS if target.module.startswith("vllm.")),
}


@pytest.mark.parametrize("engine", TABLES)
def test_every_function_is_there_as_recorded(engine):
    findings = look_at_all(TABLES[engine], SOURCES)
    assert [finding.problem for finding in findings if finding.problem] == []
    assert {f.target.path: f.parameters for f in findings if f.changed} == {}
    assert len(findings) >= 20
