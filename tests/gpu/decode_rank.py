"""One of two GPU ranks: runs every scenario of `decode_scenarios` over the transport that its argument names."""

import json
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS.parent), str(TESTS)]

import torch  # noqa: E402
from benchmarks.ranks import Ranks, run  # noqa: E402
from decode_scenarios import run_all  # noqa: E402


def main() -> int:
    ranks = Ranks.join(on_cpu=False)
    print(json.dumps(run_all(ranks, sys.argv[1])), flush=True)
    ranks.barrier()
    torch.cuda.synchronize()
    return 0


if __name__ == "__main__":
    run(main)
