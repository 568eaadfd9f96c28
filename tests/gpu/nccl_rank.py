"""One of two NCCL ranks on one GPU: captures a forward with real collectives, prints what its graph looks like as JSON."""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

TESTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS.parent), str(TESTS)]

from graph_inspect import PREFETCH, assert_behind, assert_joined, capture, read_graph  # noqa: E402

import dsv41_l2pf as l2pf  # noqa: E402

NUM_TOKENS, NUM_COLLECTIVES, WIDTH = 16, 3, 1024
ops = torch.ops.dsv41


def main() -> None:
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", device_id=torch.device("cuda:0"))
    x = torch.full((NUM_TOKENS, WIDTH), float(rank + 1), device="cuda", dtype=torch.bfloat16)
    weights = [torch.ones(WIDTH, WIDTH, device="cuda", dtype=torch.bfloat16) for _ in range(NUM_COLLECTIVES)]
    prefetcher = l2pf.Prefetcher(l2pf.Config())

    def forward() -> torch.Tensor:
        y = x * 1.0
        with prefetcher.forward(NUM_TOKENS):
            for weight in weights:
                ops.collective_begin(y, "all_reduce")
                dist.all_reduce(y)
                ops.collective_end(y)
                ops.record_weight([weight])
                y = y * weight[0]
        return y + 1

    eager = [forward()[0, 0].item() for _ in range(2)]
    dist.barrier()
    torch.cuda.synchronize()
    graph, out = capture(forward)
    seen = read_graph(graph)
    nodes, collectives = seen.kernels(PREFETCH), seen.kernels("ncclDevKernel")
    assert_behind(seen, nodes, collectives)
    assert_joined(seen, nodes[-1])

    replayed = []
    for round_index in range(5):
        x.fill_(float(rank + 1 + round_index))
        dist.barrier()
        torch.cuda.synchronize()
        graph.replay()
        replayed.append([out.min().item(), out.max().item()])
    (signature,) = prefetcher.status()["signatures"]
    print(
        json.dumps(
            {
                "eager": eager,
                "replayed": replayed,
                "num_nodes": len(nodes),
                "num_collectives": len(collectives),
                "signature": signature,
            }
        ),
        flush=True,
    )
    dist.barrier()
    torch.cuda.synchronize()
    # A communicator waits for the graphs that hold its kernels; there is nothing left to tidy up for.
    os._exit(0)


if __name__ == "__main__":
    main()
