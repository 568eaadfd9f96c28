"""tools/records.py: what a long run found is kept, taken over and shown, and a page shows what was not run."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TOOL = ROOT / "tools" / "records.py"


@pytest.fixture
def records(monkeypatch, tmp_path):
    spec = importlib.util.spec_from_file_location("records", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "FILE", tmp_path / "records.json")
    monkeypatch.delenv("L2PF_RECORDS", raising=False)
    monkeypatch.setenv("L2PF_COMMIT", "abc123")
    return module


def test_the_newest_record_of_a_run_is_kept(records):
    records.main(["add", "memcheck", "make sanitize-gpu", "22 tests;\n 0 errors"])
    records.main(["add", "memcheck", "make sanitize-gpu", "23 tests; 0 errors"])
    records.main(["add", "gpu_ctest", "make gpu", "100% tests passed"])
    kept = json.loads(records.FILE.read_text())
    assert list(kept) == ["gpu_ctest", "memcheck"]
    assert kept["memcheck"]["found"] == "23 tests; 0 errors"
    assert kept["memcheck"]["commit"] == "abc123" and kept["memcheck"]["machine"]


def test_another_machines_records_are_taken_over(records, monkeypatch, tmp_path):
    other = tmp_path / "other.json"
    records.main(["add", "fuzz_plan", "make fuzz", "1 execution"])
    with monkeypatch.context() as there:
        there.setenv("L2PF_RECORDS", str(other))
        records.main(["add", "memcheck", "make sanitize-gpu", "0 errors"])
    records.main(["merge", str(other)])
    assert {name: record["found"] for name, record in records.read(records.FILE).items()} == {
        "fuzz_plan": "1 execution",
        "memcheck": "0 errors",
    }


def test_the_page_shows_every_run_and_says_which_were_not_made(records):
    records.main(["add", "soak_gpu", "make soak", "a | b"])
    text = records.render(records.read(records.FILE))
    assert "a \\| b | `make soak` |" in text
    assert text.count("not run yet") == len(records.RUNS) - 1


def test_a_run_that_nobody_knows_is_refused(records):
    with pytest.raises(SystemExit, match="expected one of gpu_ctest, .*, got fuzz$"):
        records.main(["add", "fuzz", "make fuzz", "1"])
    failed = subprocess.run([sys.executable, str(TOOL), "add"], capture_output=True, text=True)
    assert failed.returncode == 1 and "records.py add NAME COMMAND FOUND" in failed.stderr


def test_the_page_in_docs_is_made_from_the_records(records):
    assert (ROOT / "docs" / "reliability.md").read_text() == records.render(records.read(ROOT / "tests" / "records.json"))
