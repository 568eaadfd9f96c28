"""`doctor` beside the real engine: every hook target is named, and nothing of the engine is imported."""

import json

CODE = """
import json, sys
from dataclasses import asdict
from dsv41_l2pf.doctor.engines import look_at_engines
found = {engine.name: {**asdict(engine), "findings": engine.findings} for engine in look_at_engines()}
print(json.dumps([found, [name for name in ("sglang", "vllm", "b12x", "flashinfer") if name in sys.modules]]))
"""


def test_every_target_is_found_without_importing_the_engine(run_python):
    found, imported = json.loads(run_python(CODE).stdout)
    assert imported == []
    assert {name for name, engine in found.items() if engine["is_installed"]} == {"sglang", "b12x"}
    for engine in found.values():
        assert engine["findings"] == [] and engine["is_registered"] in (True, None)
        if engine["is_installed"]:
            assert engine["version"] == engine["recorded_version"]
    assert sum(hook["state"] == "found" for hook in found["sglang"]["hooks"]) >= 20
