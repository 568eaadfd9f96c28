"""`torch.compile(model, backend="dsv41")`: windows placed in the graph, then Inductor or another backend.

Weights are found statically here, so compiled code needs no learning forward.
"""

from .backend import CompileBackend, compile_backend, dsv41
from .report import GraphReport, WindowReport, clear_reports, reports

__all__ = ["CompileBackend", "GraphReport", "WindowReport", "clear_reports", "compile_backend", "dsv41", "reports"]
