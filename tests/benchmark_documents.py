"""Results of benchmarks that were never run, as their JSON holds them."""

from benchmarks.common import Document, Goal
from benchmarks.models import MIB
from benchmarks.timing import NULL, OFF

RECORD = {"gpu": "a GPU", "driver": "1.2", "torch": "2.11", "commit": "abc", "command": "python3 -m benchmarks.decode"}


def document(**changes) -> Document:
    rows = [
        {"case": "a case", "arm": OFF, "value": 100.0, "unit": "us", "ratio_to_off": 1.0},
        {"case": "a case", "arm": NULL, "value": 100.1, "unit": "us", "ratio_to_off": 1.001},
        {"case": "a case", "arm": "seed", "value": 101.0, "unit": "us", "ratio_to_off": 1.01},
        {"case": "a case", "arm": "ours_auto", "value": 93.0, "unit": "us", "ratio_to_off": 0.93},
        {"case": "a case", "arm": "ours_tuned", "value": 91.0, "unit": "us", "ratio_to_off": 0.91},
    ]
    for entry in rows:
        entry |= {"ratio_low": entry["ratio_to_off"] - 0.002, "ratio_high": entry["ratio_to_off"] + 0.002}
    goals = [Goal("a case: step of off, ours_tuned", 0.91, 0.92), Goal("a case: step of off, ours_auto", 0.93, 0.92)]
    made = Document("decode", dict(RECORD), rows=rows, goals=goals, null_spreads=[0.003, 0.001])
    for name, value in changes.items():
        setattr(made, name, value)
    return made


CALIBRATION = {
    "window_bytes": 16_000_000,
    "cold_us": 8.0,
    "hot_us": 4.0,
    "chosen_fill_gbps": 2000.0,
    "hot_knee_bytes": 40 * MIB,
}


def gap_content() -> dict:
    shared = {"case": "fp8, 5 us", "gemm": "fp8 1x1 M16", "delay_us": 5.0, "weight_bytes": 16_000_000}
    shared["unit"] = "us a window"
    rows = [
        {**shared, "arm": OFF, "value": 30.0, "ratio_to_off": 1.0, "share": 0.0, "saved_us": 0.0},
        {**shared, "arm": "ours_auto", "value": 28.0, "ratio_to_off": 0.93, "share": 0.7, "saved_us": 2.0},
        {**shared, "arm": "ideal", "value": 27.0, "ratio_to_off": 0.9, "share": 1.0, "saved_us": 3.0},
    ]
    probes = [{"case": "fill rate", "arm": "ours_auto", "value": 3500.0, "unit": "GB/s", "ratio_to_off": 0.91}]
    goals = [Goal("share", 0.7, 0.8, at_most=False)]
    made = Document("gap", dict(RECORD), rows=rows + probes, goals=goals, null_spreads=[0.002])
    return made.content() | {"calibration": CALIBRATION}
