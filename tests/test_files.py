"""Our JSON files: whole or not there, private, and refused with a reason when they are something else."""

import json
import stat

import pytest

from dsv41_l2pf.files import read_json, write_json


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "new folder" / "x.json"
    write_json(path, 3, {"a": [1, 2.5, "b"]})
    assert read_json(path, 3) == {"a": [1, 2.5, "b"]}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["x.json"]


def test_no_file_is_none(tmp_path):
    assert read_json(tmp_path / "none.json", 1) is None


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "x.json"
    write_json(path, 1, {"a": 1})
    with pytest.raises(TypeError):
        write_json(path, 1, {"a": object()})
    assert read_json(path, 1) == {"a": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.json"]


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "expected JSON"),
        (b"\xff\xfe", "expected JSON"),
        (b'{"format": 1, ', "expected JSON"),
        (b"[" * 100_000, "expected JSON"),
        (b"[]", "expected an object with format 1, got None"),
        (json.dumps({"format": 2}).encode(), "expected an object with format 1, got 2"),
        (b" " * ((16 << 20) + 1), "expected at most 16777216 bytes, got more"),
    ],
)
def test_another_file_is_refused_with_its_path(tmp_path, content, message):
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as error:
        read_json(path, 1)
    assert str(path) in str(error.value)
