"""One rank of a real vLLM model on the CPU: real configuration, groups, layers, compilation and graph manager.

The wheel of vLLM is built for CUDA. Replaced: the platform (vLLM's own for CPUs), the kernels of its C++ library (vLLM's own
PyTorch forms of them), the attention kernel (it passes the queries on), and CUDA graphs (a context that only says when it is
entered). The collectives go through the opaque operators
that CUDA platforms use.
"""

import json
import os
from contextlib import contextmanager
from pathlib import Path

import torch
from sglang_rank import LLAMA, NUM_RANKS

MODEL_PATH = os.environ.get("L2PF_MODEL", "")
MODE_COMPILED = 2  # CompilationMode.DYNAMO_TRACE_ONCE: what vLLM's CPU platform makes of its default


def use_cpu() -> None:
    """Before anything of vLLM looks at the platform."""
    import vllm.platforms
    from vllm.platforms.cpu import CpuPlatform

    vllm.platforms._current_platform = CpuPlatform()


class Rank:
    """A loaded model on one rank of two, inside a gloo group that exists already."""

    def __init__(self, rank: int, model_path: str, compiled: bool) -> None:
        from vllm.config import set_current_vllm_config
        from vllm.distributed import parallel_state
        from vllm.engine.arg_utils import EngineArgs
        from vllm.model_executor.custom_op import CustomOp
        from vllm.model_executor.layers.attention import Attention
        from vllm.model_executor.model_loader import get_model

        compilation = {"mode": MODE_COMPILED, "backend": "eager"} if compiled else {"mode": 0}
        self.config = EngineArgs(
            model=model_path,
            load_format="dummy",
            skip_tokenizer_init=True,
            tensor_parallel_size=NUM_RANKS,
            max_model_len=256,
            disable_custom_all_reduce=True,
            distributed_executor_backend="mp",
            compilation_config=compilation,
        ).create_engine_config()
        CustomOp.dispatch_forward = lambda self, *args, **kwargs: self.forward_native
        Attention.forward = lambda self, query, key, value, **kwargs: query
        with set_current_vllm_config(self.config):
            parallel_state.init_distributed_environment(NUM_RANKS, rank, "env://", rank, "gloo")
            parallel_state.ensure_model_parallel_initialized(NUM_RANKS, 1)
            self.group = parallel_state.get_tp_group()
            self.group.use_custom_op_call = True
            self.model = get_model(vllm_config=self.config)

    def forward(self, num_tokens: int) -> torch.Tensor:
        """Hidden states of a decode step; runs compiled where the model is, unless vLLM's context says otherwise."""
        from vllm.forward_context import set_forward_context

        inputs = torch.arange(num_tokens)
        with set_forward_context(None, self.config, num_tokens=num_tokens), torch.inference_mode():
            return self.model(input_ids=inputs, positions=inputs, intermediate_tensors=None)


@contextmanager
def fake_cuda_graphs(entered):
    """CUDA graphs that capture nothing: `entered(True)` and `entered(False)` say when one would."""
    from vllm.v1.worker.gpu import cudagraph_utils

    @contextmanager
    def graph(*args, **kwargs):
        entered(True)
        try:
            yield
        finally:
            entered(False)

    @contextmanager
    def passing(*args, **kwargs):
        yield None

    class Graph:
        pass

    real = torch.cuda.CUDAGraph, torch.cuda.graph
    torch.cuda.CUDAGraph, torch.cuda.graph = Graph, graph
    cudagraph_utils.graph_capture = cudagraph_utils.capture_pool = passing
    cudagraph_utils.current_stream = lambda: None
    try:
        yield
    finally:
        torch.cuda.CUDAGraph, torch.cuda.graph = real


def write_model(folder: Path) -> str:
    """A folder with a Llama's config.json; vLLM makes up the weights."""
    (folder / "config.json").write_text(json.dumps(LLAMA))
    return str(folder)
