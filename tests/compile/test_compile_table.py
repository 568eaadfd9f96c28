"""The measured table in docs/compile.md: it comes from the benchmark's JSON and from nowhere else."""

from benchmarks import compile_table

CONTENT = {
    "gpu": "a GPU",
    "driver": "1.2",
    "torch": "2.11",
    "commit": "0123456789abcdef",
    "delay_us": 5.0,
    "num_layers": 4,
    "null_spread": 0.004,
    "compilation": {
        "a model": {
            "num_windows": 8,
            "num_collectives": 9,
            "planned_mib": 12.34,
            "compile_off_s": 20.0,
            "compile_ratio": 1.012,
            "place_s": 0.01,
        }
    },
    "rows": [{"case": "a model, captured", "arm": "on", "ratio_to_off": 0.91}],
}


def test_a_row_a_model_and_a_dash_for_what_was_not_measured():
    head, _, columns, _, row = compile_table.table(CONTENT).split("\n")
    assert head.startswith("a GPU, driver 1.2, torch 2.11, commit 0123456789ab; collectives of 5 us, 4 layers.")
    names = ["model", "windows / collectives", "planned MiB", "compile time", *compile_table.WAYS]
    assert columns == "| " + " | ".join(names) + " |"
    assert row == "| a model | 8 / 9 | 12.3 | 1.012 of 20.0 s, placing 0.010 s | - | 0.910 | - | - |"


def test_the_page_has_room_for_it(tmp_path, monkeypatch):
    page = tmp_path / "compile.md"
    text = compile_table.PAGE.read_text()
    page.write_text(text)
    monkeypatch.setattr(compile_table, "PAGE", page)
    for _ in range(2):  # writing it again changes nothing
        compile_table.write_page(CONTENT)
        before, _, rest = page.read_text().partition(compile_table.BEGIN)
        table, _, after = rest.partition(compile_table.END)
        assert table == f"\n{compile_table.table(CONTENT)}\n"
        assert before + after == text.partition(compile_table.BEGIN)[0] + text.partition(compile_table.END)[2]
