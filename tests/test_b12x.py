"""b12x's hooks on a stand-in package: windows, declined and closed collectives, and what is not there."""

import sys
import textwrap

import pytest
import torch

import dsv41_l2pf
from dsv41_l2pf.config import Config
from dsv41_l2pf.integrations import targets

ROCE = """
    class RoceOneshotAllReduce:
        closed, eligible = False, True
        def should_allreduce(self, inp):
            if self.closed: raise RuntimeError("RoCE runtime is closed")
            return self.eligible
        def should_all_gather(self, inp, dim=-1): return self.eligible
        def all_reduce(self, inp, *, out=None, stream=None, plan, future=0):
            if not self.eligible: raise ValueError("not eligible")
            return (inp, plan, future)[0]
        def all_gather(self, inp, *, dim=-1, out=None, stream=None, plan): return inp
"""


@pytest.fixture
def roce(tmp_path, monkeypatch):
    from dsv41_l2pf.integrations import b12x, targets as module

    for folder in ("b12x", "b12x/comm", "b12x/comm/roce"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").touch()
    (tmp_path / "b12x/comm/roce/roce_oneshot.py").write_text(textwrap.dedent(ROCE))
    monkeypatch.syspath_prepend(tmp_path)
    module.source_of.cache_clear()
    yield b12x
    b12x.uninstall()
    module.source_of.cache_clear()
    for name in [name for name in sys.modules if name == "b12x" or name.startswith("b12x.")]:
        del sys.modules[name]


@pytest.mark.parametrize("first", ["import", "install"])
def test_b12x_windows(roce, first):
    prefetcher = dsv41_l2pf.Prefetcher(Config(form="load"))
    if first == "import":
        import b12x.comm.roce.roce_oneshot as module
    assert roce.install(prefetcher) is prefetcher is roce.install()
    import b12x.comm.roce.roce_oneshot as module

    runtime, x, weight = module.RoceOneshotAllReduce(), torch.ones(64), torch.zeros(1024)
    runtime.all_reduce(x, plan=1)
    for _ in range(2):
        with prefetcher.forward(1):
            assert runtime.all_reduce(inp=x, plan=1, future=2) is x
            torch.ops.dsv41.record_weight([weight])
            runtime.all_gather(x, dim=0, plan=1)
            runtime.eligible = False
            with pytest.raises(ValueError, match="not eligible"):
                runtime.all_reduce(x, plan=1)
            runtime.eligible, runtime.closed = True, True
            runtime.all_reduce(x, plan=1)
            runtime.closed = False
    (signature,) = prefetcher.status()["signatures"]
    assert (signature["num_collectives"], signature["num_windows"]) == (2, 1)
    assert [w["kind"] for w in signature["windows"]] == ["all_reduce"]
    roce.uninstall()
    assert not hasattr(module.RoceOneshotAllReduce.all_reduce, "__wrapped__")


def test_b12x_that_is_not_there_or_not_as_expected(roce, tmp_path):
    (tmp_path / "b12x/comm/roce/roce_oneshot.py").write_text("class RoceOneshotAllReduce: pass\n")
    with pytest.raises(ImportError, match="RoceOneshotAllReduce.all_reduce is missing"):
        roce.install(dsv41_l2pf.Prefetcher(Config()))
    (tmp_path / "b12x/comm/roce/roce_oneshot.py").unlink()
    targets.source_of.cache_clear()
    with pytest.raises(ImportError, match="pip install b12x"):
        roce.install()
