"""The engines' hooks against fake modules that have the import shapes of the real ones; no engine is needed."""

import functools
import logging
import sys
import textwrap

import pytest

import dsv41_l2pf
from dsv41_l2pf.config import Config
from dsv41_l2pf.integrations import b12x_targets, sglang_targets
from dsv41_l2pf.integrations.hooks import Hooks, PostImport
from dsv41_l2pf.integrations.install import Installation, install_targets
from dsv41_l2pf.integrations.session import Session
from dsv41_l2pf.integrations.targets import Finding, Target, look_at, look_at_all, source_parameters

LOGGER = logging.getLogger("dsv41_l2pf")


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Writes a package of fake modules, makes it importable, and forgets it afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)

    def write(**sources):
        package = tmp_path / "fake_engine"
        package.mkdir(exist_ok=True)
        (package / "__init__.py").touch()
        for name, source in sources.items():
            (package / f"{name}.py").write_text(textwrap.dedent(source))
        return package

    yield write
    for name in set(sys.modules) - before:
        if name.startswith("fake_engine"):
            del sys.modules[name]


def target(name, parameters=("x",), module="fake_engine.ops", part="part", role="double", **kwargs):
    return Target(part, role, module, name, tuple(parameters), kwargs.pop("uses", len(parameters)), **kwargs)


def double(function):
    return lambda *args, **kwargs: 2 * function(*args, **kwargs)


OPS = """
    import functools
    def scale(x, factor=1): return x * factor
    bound = functools.partial(scale, factor=10)
    class Method:
        def apply(self, x): return x
        @staticmethod
        def fixed(x): return x
"""


def test_a_hook_reaches_names_that_were_imported_before(fake):
    fake(ops=OPS, user="from .ops import scale\nfrom .ops import scale as other, bound\n")
    import fake_engine.user as user

    hooks = Hooks(LOGGER)
    hooks.add(target("scale"), double)
    assert [user.scale(1), user.other(1), user.bound(1)] == [2, 2, 20]
    hooks.remove()
    assert [user.scale(1), user.other(1), user.bound(1)] == [1, 1, 10]


def test_a_hook_waits_for_its_module_and_comes_before_its_importers(fake):
    fake(ops=OPS, user="from .ops import scale, Method\n")
    hooks = Hooks(LOGGER)
    hooks.add(target("scale"), double)
    hooks.add(target("Method.apply"), double)
    assert "fake_engine.ops" not in sys.modules
    import fake_engine.user as user

    assert user.scale(3) == 6 and user.Method().apply(3) == 6
    assert user.scale.__module__ == "fake_engine.ops"
    hooks.remove()
    assert not any(isinstance(finder, PostImport) for finder in sys.meta_path)


def test_a_static_method_stays_one_and_an_inherited_one_goes_away_again(fake):
    fake(ops=OPS + "    class Child(Method): pass\n")
    import fake_engine.ops as ops

    hooks = Hooks(LOGGER)
    hooks.add(target("Method.fixed"), double)
    hooks.add(target("Child.apply"), double)
    assert ops.Method.fixed(2) == ops.Method().fixed(2) == 4
    assert (ops.Child().apply(2), ops.Method().apply(2)) == (4, 2)
    hooks.remove()
    assert "apply" not in vars(ops.Child) and ops.Method.fixed(2) == 2


def test_a_function_that_somebody_wrapped_later_keeps_our_hook(fake, caplog):
    fake(ops=OPS)
    import fake_engine.ops as ops

    hooks = Hooks(LOGGER)
    hooks.add(target("scale"), double)
    ours = ops.scale
    ops.scale = functools.wraps(ours)(lambda x: ours(x) + 1)
    hooks.remove()
    assert ops.scale(1) == 3 and "was wrapped after us" in caplog.text


def test_a_module_that_fails_to_import_says_its_own_error(fake):
    fake(ops="raise ImportError('no such library')\n")
    hooks = Hooks(LOGGER)
    hooks.add(target("scale"), double)
    with pytest.raises(ImportError, match="no such library"):
        import fake_engine.ops  # noqa: F401
    hooks.remove()


# -- verification -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loaded", [False, True])
def test_what_a_target_looks_like(fake, loaded):
    fake(ops=OPS)
    if loaded:
        import fake_engine.ops  # noqa: F401
    assert look_at(target("scale", ("x", "factor"))) == Finding(target("scale", ("x", "factor")), ("x", "factor"))
    assert look_at(target("Method.apply", ("self", "x"))).problem == ""
    assert look_at(target("Method.run")).problem == "fake_engine.ops.Method.run is missing"
    assert look_at(target("run", module="fake_engine.none")).problem == "fake_engine.none is missing"
    changed = look_at(target("scale", ("y", "factor")))
    assert changed.problem == "fake_engine.ops.scale: expected parameters (y, factor, ...), got (x, factor)"
    newer = look_at(target("scale", ("x",)))
    assert newer.changed and not newer.problem
    assert ("fake_engine.ops" in sys.modules) == loaded


def test_headers_are_read_without_parsing_the_file(tmp_path):
    source = tmp_path / "m.py"
    source.write_text(
        "class A:\n    def f(self, x):\n        pass\n"
        "if True:\n    async def g(a, *, b: dict[str, int] = {':': 1},  # ):\n            **kw) -> int:\n        pass\n"
        "class B(A):\n    @staticmethod\n    def f(\n        y=(1, 2),\n        *rest,\n    ): return 1\n"
    )
    assert source_parameters(source, "A.f") == ("self", "x")
    assert source_parameters(source, "B.f") == ("y", "rest")
    assert source_parameters(source, "g") == ("a", "b", "kw")
    assert source_parameters(source, "A.g") is None and source_parameters(source, "C.f") is None


def test_a_part_with_a_missing_target_is_off_and_said_so(fake, caplog):
    fake(ops=OPS)
    import fake_engine.ops as ops

    table = (
        target("scale", part="one"),
        target("gone", part="two"),
        target("Method.apply", ("self", "x"), part="two"),
        target("older", part="one", optional=True),
    )
    installation = Installation("fake", "1.0", look_at_all(table))
    hooks = install_targets(installation, {"double": double}, LOGGER, strict=False)
    assert ops.scale(1) == 2 and ops.Method().apply(1) == 1
    assert installation.summary() == "fake 1.0: 2 of 3 targets; off: two (fake_engine.ops.gone is missing)"
    assert installation.summary() in caplog.text
    hooks.remove()


def test_strict_stops_the_process_and_an_essential_part_switches_all_off(fake):
    fake(ops=OPS)
    import fake_engine.ops as ops

    table = (target("scale", part="one"), target("gone", part="two"))
    installation = Installation("fake", "1.0", look_at_all(table), essential=("two",))
    with pytest.raises(SystemExit, match=r"\(strict\).*fake_engine.ops.gone is missing"):
        install_targets(installation, {"double": double}, LOGGER, strict=True)
    install_targets(installation, {"double": double}, LOGGER, strict=False)
    assert installation.is_off and ops.scale(1) == 1
    assert "prefetching is off, since it needs: fake_engine.ops.gone is missing" in installation.summary()


@pytest.mark.parametrize("table", [sglang_targets, b12x_targets])
def test_tables_are_consistent(table):
    from dsv41_l2pf.integrations.install import ASKED
    from dsv41_l2pf.integrations.sglang import _wrappers

    roles = _wrappers(Session(Config(), LOGGER), None).keys()
    assert len({t.path for t in table.TARGETS}) == len(table.TARGETS)
    for t in table.TARGETS:
        assert 0 <= t.uses <= len(t.parameters), t.path
        assert t.role == ASKED or t.role in roles, t.path
        assert t.name.count(".") == ("self" in t.parameters), t.path
