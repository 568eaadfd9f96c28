"""The benchmarks: each module is a command, `python3 -m benchmarks.gap --help`. They are not in the wheel."""
