"""When the collectives, windows and reads of one step happened, as slices for Perfetto and for pictures."""

from .chrome import write_chrome_trace
from .slices import Slice
from .step import trace_eager_step, trace_graph_step

__all__ = ["Slice", "trace_eager_step", "trace_graph_step", "write_chrome_trace"]
