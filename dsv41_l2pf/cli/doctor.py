"""`doctor`: what is here, what works, and one sentence."""

from __future__ import annotations

from collections import Counter

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..doctor import Examination, examine
from ..doctor.calibrations import CalibrationFacts
from ..doctor.engines import CHANGED
from ..report import mib
from .output import AsJson, console_for, finish, no_gpu_reason, print_json


def doctor(as_json: AsJson = False) -> None:
    """Looks at GPU, calibration, environment and engines, prefetches for real, and says: on, or off because."""
    found = examine(no_gpu_reason())
    if as_json:
        print_json(found.as_dict())
    else:
        _print(console_for(as_json), found)
    finish(bool(found.findings or found.off_because))


def _print(console: Console, found: Examination) -> None:
    def say(text: str, style: str = "") -> None:
        # No markup: the text quotes what others wrote.
        console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    console.print(_machine(found), _environment(found), _engines(found), sep="\n")
    for engine in found.engines:
        for hook in engine.hooks:
            if hook.state == CHANGED:
                say(f"{engine.name}: {hook.path} has other parameters than recorded, which we pass through")
    for entry in found.calibrations:
        say(f"calibration: {_calibration(entry)}")
    calibrated = {index for entry in found.calibrations if not entry.problem for index in entry.gpus}
    for gpu in found.gpus:
        if gpu.index not in calibrated:
            say(f"calibration: none yet of cuda:{gpu.index}: it is measured at first use, or by `calibrate`")
    say(f"self-test: {found.self_test.text} ({found.self_test.elapsed_s:.1f} s)")
    for finding in found.findings:
        say(f"finding: {finding}", "bold")
    say(found.sentence, "bold")


def _machine(found: Examination) -> Table:
    table = Table(title=f"dsv41_l2pf {found.version}")
    table.add_column("what")
    table.add_column("value", overflow="fold")
    table.add_row("library", Text(found.library))
    table.add_row("torch", f"{found.torch}, {'CUDA ' + found.torch_cuda if found.torch_cuda else 'without CUDA'}")
    table.add_row("machine", found.machine)
    table.add_row("driver", found.driver or "none")
    for gpu in found.gpus:
        forms = gpu.error or "forms " + ", ".join(gpu.forms)
        what = f"{gpu.name}, sm {gpu.compute_capability}, L2 {mib(gpu.l2_bytes)} MiB, {forms}"
        table.add_row(f"cuda:{gpu.index}", Text(what))
    if found.no_gpu:
        table.add_row("GPU", found.no_gpu)
    return table


def _environment(found: Examination) -> Table:
    table = Table(title="environment")
    for column in ("variable", "value", "effect"):
        table.add_column(column, overflow="fold")
    for variable in found.variables:
        value = "not set" if variable.value is None else repr(variable.value)
        table.add_row(Text(variable.name), Text(value), Text(variable.effect or "refused"))
    return table


def _engines(found: Examination) -> Table:
    table = Table(title="engines")
    for column in ("engine", "version", "tables made with", "hook targets"):
        table.add_column(column)
    for engine in found.engines:
        states = Counter(hook.state for hook in engine.hooks)
        targets = ", ".join(f"{count} {state}" for state, count in states.items())
        version = engine.version if engine.is_installed else "not installed"
        table.add_row(engine.name, Text(version), engine.recorded_version, targets)
    return table


def _calibration(entry: CalibrationFacts) -> str:
    if entry.problem:
        return f"{entry.path}: {entry.problem}"
    values, where = entry.values, ", ".join(f"cuda:{index}" for index in entry.gpus) or "no GPU here"
    choice = f"{values['form']}, {values['num_ctas']} CTAs, {values['chosen_fill_gbps']:.0f} GB/s"
    reads = (
        f"a read of {mib(values['window_bytes'])} MiB takes {values['cold_us']:.1f} us from DRAM, "
        f"{values['hot_us']:.1f} us from L2, which serves up to {mib(values['hot_knee_bytes'])} MiB"
    )
    return f"{values['gpu']} ({where}), measured {_ago(entry.age_s)}: {choice}; {reads}; {entry.path}"


def _ago(age_s: float) -> str:
    for seconds, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if age_s >= 2 * seconds:
            return f"{age_s / seconds:.0f} {unit} ago"
    return f"{age_s:.0f} s ago"
