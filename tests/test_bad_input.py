"""Bad calls of the operators, the Python API, the environment and our files: what each is told, and that it changes nothing.

A call gets `at`: x, w (tensors), model and prefetcher (attached, two windows learned), handle, and path (a file that
need not exist). The message is the whole first line; what follows `...` may differ.
"""

import gc
import json
from types import SimpleNamespace

import pytest
import torch
from test_calibration import MEASURED
from three_linears import Model, X

import dsv41_l2pf as l2pf
from dsv41_l2pf import Config, Prefetcher, attach, calibrate, compile_backend
from dsv41_l2pf.calibration import Calibration
from dsv41_l2pf.files import read_json
from dsv41_l2pf.tuning import save

ops = torch.ops.dsv41
# torch maps std::invalid_argument to one or the other, by its version.
REJECTED = (ValueError, RuntimeError, FileNotFoundError)

FORMS = "auto, bulk, lines, load, load_keep, load_both"
KINDS = "all_reduce, all_gather, reduce_scatter, all_to_all, broadcast"
STRIDED = "to be a strided tensor on CPU or CUDA, got"
SPARSE = "a sparse or otherwise non-strided tensor"
LIVE = "expected the handle of a live prefetcher, got"
MODES = "one of decode, target_verify, draft_extend, with or without a /variant"

OPERATORS = [
    (lambda at: ops.l2_prefetch(at.x, [at.w], -2), "dsv41::l2_prefetch: expected `budget_bytes` of at least -1, got -2"),
    (lambda at: ops.l2_prefetch(at.x, [at.w.to_sparse()]), f"dsv41::l2_prefetch: expected `weights` {STRIDED} {SPARSE}"),
    (lambda at: ops.l2_prefetch(at.x.to_sparse(), [at.w]), f"dsv41::l2_prefetch: expected `anchor` {STRIDED} {SPARSE}"),
    (lambda at: ops.l2_prefetch(None, [at.w]), f"dsv41::l2_prefetch: expected `anchor` {STRIDED} an undefined tensor"),
    (lambda at: ops.l2_prefetch(at.x, at.w), "dsv41::l2_prefetch() Expected a value of type 'List[Tensor]' for argument 'weights'..."),
    (lambda at: ops.l2_prefetch(at.x, ["w"]), "dsv41::l2_prefetch() Expected a value of type 'List[Tensor]' for argument 'weights'..."),
    (lambda at: ops.l2_prefetch(at.x, [at.w], 1.5), "dsv41::l2_prefetch() Expected a value of type 'int' for argument 'budget_bytes'..."),
    (lambda at: ops.l2_prefetch(at.x, [at.w], 1 << 64), "dsv41::l2_prefetch() Expected a value of type 'int' for argument 'budget_bytes'..."),
    (lambda at: ops.l2_join(at.x.to_sparse()), f"dsv41::l2_join: expected `anchor` {STRIDED} {SPARSE}"),
    (lambda at: ops.join_windows(at.x.to_sparse()), f"dsv41::l2_join: expected `anchor` {STRIDED} {SPARSE}"),
    (lambda at: ops.window_begin(at.x, [at.w], -7), "dsv41::window_begin: expected `budget_bytes` of at least -1, got -7"),
    (lambda at: ops.window_begin(at.x.to_sparse(), [at.w]), f"dsv41::window_begin: expected `input` {STRIDED} {SPARSE}"),
    (lambda at: ops.window_end(at.x.to_sparse()), f"dsv41::window_end: expected `output` {STRIDED} {SPARSE}"),
    (lambda at: ops.collective_begin(at.x, "gossip"), f"dsv41::collective_begin: expected `kind` to be one of {KINDS}, got 'gossip'"),
    (lambda at: ops.collective_begin(at.x, ""), f"dsv41::collective_begin: expected `kind` to be one of {KINDS}, got ''"),
    (lambda at: ops.collective_begin(at.x, 3), "dsv41::collective_begin() Expected a value of type 'str' for argument 'kind'..."),
    (lambda at: ops.collective_begin("x", "all_reduce"), "dsv41::collective_begin() Expected a value of type 'Tensor' for argument 'input'..."),
    (lambda at: ops.record_weight(at.w), "dsv41::record_weight() Expected a value of type 'List[Tensor]' for argument 'weights'..."),
    (lambda at: ops.record_unplanned(-1), "dsv41::record_unplanned: expected `num_bytes` of at least 0, got -1"),
    (lambda at: ops.begin_forward(10**9, 1, 1, "decode"), f"{LIVE} 1000000000"),
    (lambda at: ops.begin_forward(at.handle, 1, -1, "decode"), "dsv41::begin_forward: expected `num_tokens` of at least 0, got -1"),
    (lambda at: ops.begin_forward(at.handle, 1, 1, 7), "dsv41::begin_forward() Expected a value of type 'str' for argument 'mode'..."),
    (lambda at: ops.invalidate(-1), f"{LIVE} -1"),
    (lambda at: ops.pause(10**9), f"{LIVE} 1000000000"),
    (lambda at: ops.resume(10**9), f"{LIVE} 1000000000"),
    (lambda at: ops.resume(at.handle), "expected a paused prefetcher, got one that is not paused"),
    (lambda at: ops.destroy_prefetcher(0), f"{LIVE} 0"),
    (lambda at: ops.plan_segments(10**9, 1, 1, "decode"), f"{LIVE} 1000000000"),
    (lambda at: ops.set_window(10**9, 1, 1, "decode", 0, 0, ""), f"{LIVE} 1000000000"),
    (lambda at: ops.set_window(at.handle, 1, 1, "decode", 0, -2, ""), "dsv41::set_window: expected `budget_bytes` of at least -1, got -2"),
    (lambda at: ops.set_window(at.handle, 1, 1, "decode", 0, 0, "x"), f"dsv41::set_window: expected `form` to be one of {FORMS}, got 'x'"),
    (lambda at: ops.set_window(at.handle, 0, 1, "decode", 0, 0, ""), "expected a signature with a plan, got model 0, 1 tokens, mode decode"),
    (lambda at: ops.create_prefetcher(-2, True, "auto", "auto", 1, False, False), "dsv41::create_prefetcher: expected `budget_bytes` of at least -1, got -2"),
    (lambda at: ops.create_prefetcher(0, True, "best", "auto", 1, False, False), f"dsv41::create_prefetcher: expected `form` to be one of {FORMS}, got 'best'"),
    (lambda at: ops.create_prefetcher(0, True, "auto", "here", 1, False, False), "dsv41::create_prefetcher: expected `placement` to be one of auto, in_line, launch_order, side_stream, got 'here'"),
    (lambda at: ops.create_prefetcher(0, True, "auto", "auto", 1, False, False, -2), "dsv41::create_prefetcher: expected `in_flight_bytes` of at least -1, got -2"),
    (lambda at: ops.create_prefetcher(0, True, "auto", "auto", 1, False, False, 65535), "dsv41::create_prefetcher: expected `in_flight_bytes` of at least 65536, got 65535"),
    (lambda at: ops.create_prefetcher(0, True, "auto", "auto", 0, False, False), "dsv41::create_prefetcher: expected `max_tokens` of at least 1, got 0"),
    (lambda at: ops.emulated_all_reduce(at.x, -1.0), "dsv41::emulated_all_reduce: expected `delay_us` in [0, 1e6], got -1.000000"),
    (lambda at: ops.emulated_all_reduce(at.x, float("nan")), "dsv41::emulated_all_reduce: expected `delay_us` in [0, 1e6], got nan"),
    (lambda at: ops.emulated_all_reduce(at.x, 1.0, 0), "dsv41::emulated_all_reduce: expected `num_ctas` of at least 1, got 0"),
]  # fmt: skip

API = [
    (lambda at: Config(budget_bytes=-2), "budget_bytes: expected bytes >= 0, or -1 for auto, got -2"),
    (lambda at: Config(budget_bytes=1.5), "budget_bytes: expected bytes >= 0, or -1 for auto, got 1.5"),
    (lambda at: Config(budget_bytes="6"), "budget_bytes: expected bytes >= 0, or -1 for auto, got '6'"),
    (lambda at: Config(budget_bytes=True), "budget_bytes: expected bytes >= 0, or -1 for auto, got True"),
    (lambda at: Config(budget_bytes=1 << 63), "budget_bytes: expected bytes >= 0, or -1 for auto, got 9223372036854775808"),
    (lambda at: Config(max_tokens=0), "max_tokens: expected a whole number >= 1, got 0"),
    (lambda at: Config(in_flight_bytes=1), "in_flight_bytes: expected bytes >= 65536, 0 for no cap, or -1 for auto, got 1"),
    (lambda at: Config(in_flight_bytes=-2), "in_flight_bytes: expected bytes >= 65536, 0 for no cap, or -1 for auto, got -2"),
    (lambda at: Config(max_tokens=None), "max_tokens: expected a whole number >= 1, got None"),
    (lambda at: Config(form="best"), f"form: expected one of {FORMS}, got 'best'"),
    (lambda at: Config(placement=None), "placement: expected one of auto, in_line, launch_order, side_stream, got None"),
    (lambda at: Config(enabled="no"), "enabled: expected True or False, got 'no'"),
    (lambda at: Config(strict=2), "strict: expected True or False, got 2"),
    (lambda at: Prefetcher({}), "config: expected a Config or None, got {}"),
    (lambda at: attach(Model(), "auto"), "config: expected a Config or None, got 'auto'"),
    (lambda at: attach(None), "model: expected a torch.nn.Module, got None"),
    (lambda at: attach(Model(), Config(), mode="prefill"), f"mode: expected {MODES}, got 'prefill'"),
    (lambda at: attach(Model(), Config(), mode=3), f"mode: expected {MODES}, got 3"),
    (lambda at: attach(at.model, Config()), "model: expected one that is not attached, got a Model that is: detach() that first"),
    (lambda at: at.prefetcher.attach(Model()), "attach: expected a prefetcher without a model, got one that is attached: detach() it first"),
    (lambda at: at.prefetcher.forward(-1).__enter__(), "dsv41::begin_forward: expected `num_tokens` of at least 0, got -1"),
    (lambda at: at.prefetcher.forward("4").__enter__(), "dsv41::begin_forward() Expected a value of type 'int' for argument 'num_tokens'..."),
    (lambda at: at.prefetcher.forward(2, model="m").__enter__(), "model: expected a torch.nn.Module or None, got 'm'"),
    (lambda at: at.prefetcher.wrap_collective(None, "all_reduce"), "fn: expected a callable, got None"),
    (lambda at: at.prefetcher.wrap_collective(print, "gossip"), f"kind: expected one of {KINDS}, got 'gossip'"),
    (lambda at: at.prefetcher.set_window("a", num_tokens=2), "collective_index: expected a whole number >= 0, got 'a'"),
    (lambda at: at.prefetcher.set_window(9, num_tokens=2), "expected a collective index that has a window, got 9"),
    (lambda at: at.prefetcher.set_window(0, num_tokens=-1), "num_tokens: expected a whole number >= 0, got -1"),
    (lambda at: at.prefetcher.set_window(0, num_tokens=3), "expected a signature with a plan, got model ..."),
    (lambda at: at.prefetcher.set_window(0, num_tokens=2, budget_bytes=-5), "budget_bytes: expected bytes >= 0, or -1 for as configured, got -5"),
    (lambda at: at.prefetcher.set_window(0, num_tokens=2, form="best"), f"form: expected '' or one of {FORMS}, got 'best'"),
    (lambda at: at.prefetcher.set_window(0, num_tokens=2, mode=None), "mode: expected a text, got None"),
    (lambda at: at.prefetcher.set_window(0, num_tokens=2, model=5), "model: expected a torch.nn.Module or None, got 5"),
    (lambda at: at.prefetcher.plan_segments(1 << 70), f"num_tokens: expected a whole number >= 0, got {1 << 70}"),
    (lambda at: at.prefetcher.weight_name("b"), "address: expected a whole number >= 0, got 'b'"),
    (lambda at: at.prefetcher.resume(), "expected a paused prefetcher, got one that is not paused"),
    (lambda at: at.prefetcher.tune(None, progress=False), "tune: expected a step to call, got None"),
    (lambda at: at.prefetcher.tune(print, rounds=1, progress=False), "tune: expected at least 2 rounds, got 1"),
    (lambda at: at.prefetcher.tune(print, rounds="8", progress=False), "tune: expected at least 2 rounds, got '8'"),
    (lambda at: at.prefetcher.tune(print, num_tokens=7, progress=False),
     "tune: expected one signature with windows, got 0 for num_tokens=7, mode=None; those learned: 2 tokens in mode decode"),
    (lambda at: at.prefetcher.load_tunings(None), "path: expected a path, got None"),
    (lambda at: at.prefetcher.save_tunings(3), "path: expected a path, got 3"),
    (lambda at: at.prefetcher.load_tunings(at.path), "{path}: expected a file of saved tunings, got no such file"),
    (lambda at: calibrate("cpu"), "calibrate: expected a CUDA device, got cpu"),
    (lambda at: compile_backend(5), "inner: expected a backend's name or a callable, got 5"),
    (lambda at: compile_backend(config="x"), "config: expected a Config or None, got 'x'"),
]  # fmt: skip


def environment(name, value, expected):
    name = f"DSV41_L2_PREFETCH{name}"
    return lambda at: Config.from_env({name: value}), f"{name}: expected {expected}, got {value!r}"


MIB_A_WINDOW = "MiB a window (a number from 0 to 1048576), or auto"
ENVIRONMENT = [
    environment("", "yes", "one of 0, 1, strict"),
    environment("_MB", "-1", MIB_A_WINDOW),
    environment("_MB", "6MB", MIB_A_WINDOW),
    environment("_MB", "inf", MIB_A_WINDOW),
    environment("_AG", "2", "one of 0, 1"),
    environment("_FORM", "Bulk", f"one of {FORMS}"),
    environment("_PLACEMENT", "graph", "one of auto, in_line, launch_order, side_stream"),
    environment("_TUNE", "always", "one of 0, 1"),
    environment("_MAX_TOKENS", "1.5", "a whole number >= 1"),
    environment("_MAX_TOKENS", "0", "a whole number >= 1"),
]


def tunings_file(content, message):
    """What `load_tunings` says of a file with these bytes."""

    def call(at):
        at.path.write_bytes(content)
        at.prefetcher.load_tunings(at.path)

    return call, message


WINDOW = dict(collective_index=0, kind="all_reduce", window_bytes=16384, budget_bytes=8192, form="auto")
TUNING = dict(num_tokens=2, mode="decode", num_collectives=2, windows=[WINDOW], ratio=0.9, noise=0.001, step_us=5.0,
              reason="by hand", measured={})  # fmt: skip
TUNING_FIELDS = sorted(TUNING)


def tuning(message, **change):
    content = {"format": 1, "library": "0", "tunings": [{**TUNING, **change}]}
    return tunings_file(json.dumps(content).encode(), f"tuning: {message}")


def calibration_file(message, **change):
    """What the reader of the calibration cache says of a field; `test_calibration` shows that it then measures again."""
    return lambda at: Calibration.from_dict({**MEASURED, **change}), f"calibration: {message}"


FILES = [
    tunings_file(b"", "{path}: expected JSON, got Expecting value: line 1 column 1 (char 0)"),
    tunings_file(b'{"format": 1, ', "{path}: expected JSON, got Expecting property name enclosed in double quotes..."),
    tunings_file(b"\xff\xfe\x00", "{path}: expected JSON, got 'utf-..."),
    tunings_file(b"[" * 100_000, "{path}: expected JSON, got maximum recursion depth exceeded..."),
    tunings_file(b"[]", "{path}: expected an object with format 1, got None"),
    tunings_file(b'{"format": 2}', "{path}: expected an object with format 1, got 2"),
    tunings_file(b'{"format": 1, "tunings": {}}', "{path}: expected a list of tunings, got {}"),
    tunings_file(b" " * ((16 << 20) + 1), "{path}: expected at most 16777216 bytes, got more"),
    tunings_file(b'{"format": 1, "tunings": [7]}', f"tuning: tuning: expected an object with {TUNING_FIELDS}, got 7"),
    tuning("num_tokens: expected a whole number >= 0, got -1", num_tokens=-1),
    tuning("num_collectives: expected a whole number >= 0, got 2.0", num_collectives=2.0),
    tuning("mode: expected a text, got None", mode=None),
    tuning("ratio: expected a finite number, got inf", ratio=float("inf")),
    tuning("noise: expected a finite number, got True", noise=True),
    tuning("measured: expected numbers, got {'a': 'b'}", measured={"a": "b"}),
    tuning("windows: expected a list, got 5", windows=5),
    tuning(f"form: expected one of {FORMS}, got 'x'", windows=[{**WINDOW, "form": "x"}]),
    tuning(f"budget_bytes: expected a whole number >= 0, got {2**70}", windows=[{**WINDOW, "budget_bytes": 2**70}]),
    tuning("budget_bytes: expected a whole number >= 0, got -1", windows=[{**WINDOW, "budget_bytes": -1}]),
    tuning("kind: expected a text, got 1", windows=[{**WINDOW, "kind": 1}]),
    calibration_file("form: expected one of ('bulk', 'lines', 'load', 'load_keep', 'load_both'), got 'auto'", form="auto"),
    calibration_file("num_ctas: expected a whole number > 0, got 0", num_ctas=0),
    calibration_file("cold_us: expected a number > 0, got -1", cold_us=-1),
    calibration_file("partition_of_sm: expected a list of 0 and 1, got [2]", partition_of_sm=[2]),
    calibration_file("after_us: expected an object of numbers > 0, got {'load': 'x'}", after_us={"load": "x"}),
    (lambda at: Calibration.from_dict([]), "calibration: expected an object, got list"),
    (lambda at: at.path.write_bytes(b"{}") and read_json(at.path, 1), "{path}: expected an object with format 1, got None"),
]

BAD_CALLS = [
    pytest.param(*case, id=f"{group}{index}")
    for group, cases in (("operator", OPERATORS), ("api", API), ("environment", ENVIRONMENT), ("file", FILES))
    for index, case in enumerate(cases)
]


def test_there_are_at_least_sixty():
    assert len(BAD_CALLS) >= 60


@pytest.fixture(scope="module")
def learned():
    gc.collect()  # what an earlier test left would go, and be missed in `status`, in the middle of a call
    model = Model()
    prefetcher = attach(model, Config())
    model(X), model(X)
    yield SimpleNamespace(model=model, prefetcher=prefetcher, handle=prefetcher.handle)
    prefetcher.detach()


@pytest.mark.parametrize(("call", "message"), BAD_CALLS)
def test_a_bad_call_says_expected_and_got_and_changes_nothing(learned, tmp_path, call, message):
    at = SimpleNamespace(x=torch.ones(4, 64), w=torch.ones(64, 64), path=tmp_path / "x.json", **vars(learned))
    before = l2pf.status(), at.prefetcher.status(), at.prefetcher.tunings.all(), at.prefetcher.plan_segments(2)
    with pytest.raises(REJECTED) as error:
        call(at)
    said = str(error.value).splitlines()[0]
    expected, _, open_ended = message.replace("{path}", str(at.path)).partition("...")
    assert said == expected if not message.endswith("...") else said.startswith(expected), open_ended
    after = l2pf.status(), at.prefetcher.status(), at.prefetcher.tunings.all(), at.prefetcher.plan_segments(2)
    assert after == before


def test_in_front_of_a_collective_bad_arguments_switch_off_and_never_raise(learned):
    prefetcher, ran = Prefetcher(Config()), []
    with prefetcher.forward(2), prefetcher.collective(X, "gossip"):
        ran.append("the collective")
    assert ran and "expected `kind` to be one of" in prefetcher.status()["reason"]
    with prefetcher.forward(2) as counts:
        assert counts is False
    other = Prefetcher(Config())
    with other.forward(2), other.collective(None, "all_reduce"), other.collective([], "all_reduce"):
        ran.append("without a tensor there is no window")
    assert other.status()["reason"] == "" and len(ran) == 2


def test_a_list_of_tunings_with_one_bad_entry_is_refused_whole(learned, tmp_path):
    path = tmp_path / "x.json"
    save(path, [], "0")
    path.write_text(json.dumps({"format": 1, "tunings": [TUNING, {**TUNING, "ratio": None}]}))
    with pytest.raises(ValueError, match="ratio: expected a finite number, got None"):
        learned.prefetcher.load_tunings(path)
    assert learned.prefetcher.tunings.all() == []
