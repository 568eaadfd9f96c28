"""A calibration as a table."""

from __future__ import annotations

from rich.console import Group
from rich.table import Table

from ..calibration import Calibration
from ..report import mib


def calibration_table(found: Calibration) -> Group:
    """Times, rates and the choice; then what was measured of each form."""
    return Group(_of_the_gpu(found), _of_the_forms(found))


def _of_the_gpu(found: Calibration) -> Table:
    table = Table(title=f"{found.gpu}, CUDA driver {found.driver // 1000}.{found.driver % 1000 // 10}")
    table.add_column("what")
    table.add_column("value", justify="right")
    table.add_row("L2 MiB", mib(found.l2_bytes))
    table.add_row("largest read that L2 still serves, MiB", mib(found.hot_knee_bytes))
    table.add_row("DRAM read GB/s", f"{found.dram_read_gbps:.0f}")
    table.add_row(f"read of {mib(found.window_bytes)} MiB from DRAM, us", f"{found.cold_us:.2f}")
    table.add_row("the same from L2, us", f"{found.hot_us:.2f}")
    table.add_row("L2 partitions", "2" if found.partition_of_sm else "1")
    geometry = f"{found.num_ctas} CTAs, pieces of {found.piece_bytes} bytes"
    table.add_row("chosen", f"{found.form}, {geometry}, {found.chosen_fill_gbps:.0f} GB/s")
    table.add_row("start delay, us", f"{found.start_delay_ns / 1e3:g}")
    return table


def _of_the_forms(found: Calibration) -> Table:
    table = Table(title="what each form does")
    table.add_column("form")
    table.add_column("read after it, us", justify="right")
    table.add_column("collective beside it / alone", justify="right")
    ctas = sorted({int(num_ctas) for rates in found.fill_gbps.values() for num_ctas in rates})
    for num_ctas in ctas:
        table.add_column(f"GB/s,\n{num_ctas} CTAs", justify="right")
    for form, after_us in found.after_us.items():
        slowdown, rates = found.collective_slowdown.get(form), found.fill_gbps.get(form, {})
        filled = [f"{rates[str(num_ctas)]:.0f}" if str(num_ctas) in rates else "" for num_ctas in ctas]
        table.add_row(form, f"{after_us:.2f}", "" if slowdown is None else f"{slowdown:.3f}", *filled)
    return table
