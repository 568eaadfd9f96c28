"""Compiles a function with Inductor and reads the code that it generated: which calls it makes, in which order."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._inductor.utils import run_and_get_code

from dsv41_l2pf.compile import GraphReport, clear_reports, compile_backend, reports

OURS = ("window_begin", "window_end", "join_windows")

_LINE = re.compile(
    r"^\s+(?:\w+ = )?(?:torch\.ops\.\w+\.(\w+)\.\w+|extern_kernels\.(\w+)|(cpp_fused_\w+))\(", re.MULTILINE
)


@dataclass
class Generated:
    """output: what the compiled function returned. code: of each graph. reports: of each graph, empty without us."""

    output: Any
    code: list[str]
    reports: list[GraphReport]

    @property
    def calls(self) -> list[str]:
        """The operators, library calls and kernels that the code of all graphs runs, in order."""
        bodies = (code[code.index("def call(") : code.index("\nrunner = ")] for code in self.code)
        found = (next(filter(None, match)) for body in bodies for match in _LINE.findall(body))
        return ["kernel" if name.startswith("cpp_fused") else name for name in found]

    @property
    def calls_besides_ours(self) -> list[str]:
        return [name for name in self.calls if name not in OURS]


def generate(fn: Callable, *args: Any, backend: Any = "inductor", **options: Any) -> Generated:
    """Compiles `fn` from scratch and calls it. options: of torch.compile."""
    torch.compiler.reset()
    clear_reports()
    output, code = run_and_get_code(torch.compile(fn, backend=backend, **options), *args)
    return Generated(output, code, reports())


def generate_both(fn: Callable, *args: Any, config: Any = None, **options: Any) -> tuple[Generated, Generated]:
    """Without us and with us."""
    return generate(fn, *args, **options), generate(fn, *args, backend=compile_backend(config=config), **options)


def dynamo_graph(fn: Callable, *args: Any, **options: Any) -> torch.fx.GraphModule:
    """The one graph that Dynamo makes of `fn`, as a backend gets it."""
    graphs = []

    def keep(gm: torch.fx.GraphModule, _inputs: list) -> Callable:
        graphs.append(gm)
        return gm.forward

    torch.compiler.reset()
    torch.compile(fn, backend=keep, fullgraph=True, **options)(*args)
    (graph,) = graphs
    return graph
