"""What is made of results: the page, the paper model beside a measurement, and ncu's counters."""

import json
import subprocess
from pathlib import Path

import pytest
from benchmark_documents import RECORD, document, gap_content
from benchmarks import counters, page, predict
from benchmarks.common import Document

ROOT = Path(__file__).resolve().parent.parent


def test_the_paper_model_is_checked_against_gap_with_the_rates_of_the_same_run():
    (found,) = predict.checked(gap_content())
    # 10 MB fit into 5 us at 2 TB/s; each byte gains (8 - 4) us / 16 MB.
    assert found["predicted_us"] == pytest.approx(2.5 - 0.1)
    assert (found["ours_us"], found["ideal_us"]) == (2.0, 3.0)
    assert predict.typical_ratio([found]) == pytest.approx(2.0 / 2.4)
    assert predict.typical_ratio([]) is None


def test_the_page_shows_tables_pictures_and_every_missed_goal(tmp_path, monkeypatch):
    results, readme = tmp_path / "results", tmp_path / "README.md"
    document(failed={"b": "it broke"}, skipped=["c"]).write(results)
    (results / "gap.json").write_text(json.dumps(gap_content()))
    (results / "notes.md").write_text("The tail of a window is short.\n")
    monkeypatch.setattr("sys.argv", ["page", "--results", str(results), "--page", str(readme)])
    assert page.main() == 0
    text = readme.read_text()
    assert "1 of 3 goals are met." in text
    assert "| decode | a case: step of off, ours_auto | <= 0.92 | 0.930 | missed by 0.01 |" in text
    assert "| gap | share | >= 0.8 | 0.700 | missed by 0.1 |" in text
    assert "| case | off | null | seed | ours_auto | ours_tuned |" in text
    assert "| a case | 1.0000 | 1.0010 | 1.0100 | 0.9300 | 0.9100 |" in text
    assert "| fill rate | ours_auto | 3500.00 GB/s | 0.910 |" in text
    assert "| fp8, 5 us | 2.40 | 2.00 | 3.00 | 0.83 |" in text
    assert "The tail of a window is short." in text
    assert "Failed: b: it broke" in text and "the deadline came first: c." in text
    for name in ("gap", "decode"):
        assert f"](results/{name}.png)" in text
        assert (results / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_a_page_of_nothing_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["page", "--results", str(tmp_path), "--page", str(tmp_path / "README.md")])
    with pytest.raises(SystemExit, match="expected one of gap, decode, transformers, dispatch, counters, multi_gpu.json"):
        page.main()


def test_a_sweep_is_shown_by_its_best_fixed_budget():
    rows = [
        {"case": "c", "arm": "sweep_auto", "ratio_to_off": 0.93},
        {"case": "c", "arm": "sweep", "budget_mib": 8, "ratio_to_off": 0.95},
        {"case": "c", "arm": "sweep", "budget_mib": 24, "ratio_to_off": 0.92},
    ]
    content = document().content()
    text = page.section(content | {"rows": content["rows"] + rows}, "decode.png")
    assert "| c | 24 | 0.9200 | 0.9300 |" in text


@pytest.mark.parametrize("words", [[], ["unknown"]])
def test_the_script_names_the_benchmarks_it_knows(words):
    found = subprocess.run([ROOT / "tools" / "bench.sh", *words], capture_output=True, text=True)
    assert found.returncode == 2
    assert "gap, decode, transformers" in found.stderr


def ncu_output(durations_ns):
    """As ncu prints it: its own lines first, names, units, then a line a kernel."""
    names = ["ID", "Kernel Name", *(metric for metric, _ in counters.COUNTERS.values())]
    lines = [names, ["", "", "byte", "%", "ns"]]
    lines += [[str(i), "gemm, <1>", "15,270,000", "40.5", f"{ns:,}"] for i, ns in enumerate(durations_ns)]
    return "==PROF== Connected\n" + "\n".join(",".join(f'"{cell}"' for cell in line) for line in lines)


def test_counters_become_rows_whose_share_is_of_the_gap_between_cold_and_hot():
    arms = counters.arms_of(["bulk"])
    records = list(counters.records_of(ncu_output([9000, 8000, 6500] * len(counters.GEMMS))))
    rows = counters.rows_of(arms, [1] * len(counters.GEMMS), records)
    assert [row["arm"] for row in rows[:3]] == ["cold", "ours_bulk", "hot"]
    assert {row["case"] for row in rows} == set(map(counters.case_of, counters.GEMMS))
    assert rows[1]["dram_read_mb"] == pytest.approx(15.27)
    assert rows[1]["l2_read_hit_percent"] == pytest.approx(40.5)
    assert rows[1]["value"] == pytest.approx(8.0)
    assert [row["share"] for row in rows[:3]] == pytest.approx([0, 0.4, 1])


def test_kernels_of_one_gemm_add_up():
    arms = counters.arms_of([])
    durations = [9500, 6500, *([4000, 5000, 2500, 3500] * 2)]
    rows = counters.rows_of(arms, [1, 2, 2], list(counters.records_of(ncu_output(durations))))
    assert [row["value"] for row in rows] == pytest.approx([9.5, 6.5, 9, 6, 9, 6])
    assert [row["dram_read_mb"] for row in rows[1:3]] == pytest.approx([15.27, 2 * 15.27])


def test_counters_that_do_not_fit_are_an_error():
    with pytest.raises(ValueError, match="expected a table of counters, got ==ERROR== no permission"):
        list(counters.records_of("==ERROR== no permission"))
    with pytest.raises(ValueError, match="expected 15 kernels for 3 arms, got 4"):
        counters.rows_of(counters.arms_of(["bulk"]), [1, 2, 2], list(counters.records_of(ncu_output([1000] * 4))))


def test_the_page_shows_counters_without_a_picture():
    records = list(counters.records_of(ncu_output([9000, 7000, 6500] * len(counters.GEMMS))))
    rows = counters.rows_of(counters.arms_of(["load"]), [1] * len(counters.GEMMS), records)
    content = {**Document("counters", RECORD, rows=rows).content()}
    text = page.render({"counters": content}, "results")
    assert "| fp8 7168x2112 M16 | ours_load | 15.27 | 40.5 | 7.00 | 0.80 |" in text
    assert "counters.png" not in text
