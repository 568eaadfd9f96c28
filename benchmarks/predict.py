"""The paper model against the H200: what gap.json measured beside what its calibration predicts; then other GPUs."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dsv41_l2pf.predict import Rates, prediction_table

from .common import RESULTS, console, row_table
from .runs import AUTO, IDEAL


def checked(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row a GEMM and window length of a `gap` document: us a window, predicted, by us and at best (ideal).

    predicted_us is from the rates that the library measured in the same run; `of_predicted` is ours over it.
    """
    rates = Rates.from_calibration(document["calibration"])
    ideal_us = {row["case"]: row["saved_us"] for row in document["rows"] if row["arm"] == IDEAL}
    rows = []
    for row in document["rows"]:
        if row["arm"] != AUTO or "weight_bytes" not in row:
            continue
        predicted_us = rates.saved_us(row["weight_bytes"], row["delay_us"])
        rows.append(
            {
                "case": row["case"],
                "predicted_us": predicted_us,
                "ours_us": row["saved_us"],
                "ideal_us": ideal_us.get(row["case"]),
                "of_predicted": row["saved_us"] / predicted_us if predicted_us > 0 else None,
            }
        )
    return rows


def typical_ratio(rows: list[dict[str, Any]]) -> float | None:
    """The median of measured over predicted; None when nothing was predicted."""
    ratios = [row["of_predicted"] for row in rows if row["of_predicted"] is not None]
    return statistics.median(ratios) if ratios else None


def main() -> int:
    arguments = argparse.ArgumentParser(prog="python3 -m benchmarks.predict", description=__doc__)
    arguments.add_argument("--results", type=Path, default=RESULTS, help="folder with gap.json")
    gap = arguments.parse_args().results / "gap.json"
    if gap.is_file():
        rows = checked(json.loads(gap.read_text()))
        shown = {"case": "", "predicted_us": ".2f", "ours_us": ".2f", "ideal_us": ".2f", "of_predicted": ".2f"}
        console.print(row_table("the paper model against gap.json: us saved a window", rows, shown))
        console.print(f"median of measured / predicted: {typical_ratio(rows)}")
    else:
        console.print(f"{gap} is missing: the model is not checked")
    console.print(prediction_table())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
