"""The functions of vLLM that are hooked. Recorded from vllm 0.33.0."""

from __future__ import annotations

from .targets import Target

VERSION = "0.33.0"
FORWARD_CONTEXT = "vllm.forward_context"
_PARALLEL = "vllm.distributed.parallel_state"
_OFFLOADER = "vllm.model_executor.offloader"
_WORKER = "vllm.v1.worker.gpu_worker"
_EXPERTS = "vllm.model_executor.layers.fused_moe.routed_experts"

# What depends on each part. Without the first three nothing is done: nothing to learn from, or weights that change unseen.
LEARNING, ALL_REDUCE, UPDATES = "learning", "all-reduce windows", "weight updates"
ESSENTIAL = (LEARNING, ALL_REDUCE, UPDATES)
ALL_GATHER, REDUCE_SCATTER = "all-gather windows", "reduce-scatter windows"
FUSED, STREAMED = "fused all-reduce windows", "streamed experts"
RUNNER, OLD_RUNNER = "graphs of model runner V2", "graphs of model runner V1"
JOIN = "joins in graph pieces"


def _collective(part: str, role: str, name: str, *parameters: str) -> Target:
    return Target(part, role, _PARALLEL, f"GroupCoordinator.{name}", ("self", *parameters), uses=2)


def _worker(role: str, name: str, *parameters: str, uses: int = 1, optional: bool = False) -> Target:
    return Target(UPDATES, role, _WORKER, f"Worker.{name}", ("self", *parameters), uses, optional)


TARGETS = (
    Target(
        LEARNING,
        "forward_context",
        FORWARD_CONTEXT,
        "create_forward_context",
        (
            *("attn_metadata", "vllm_config", "dp_metadata", "cudagraph_runtime_mode", "batch_descriptor"),
            *("ubatch_slices", "slot_mapping", "additional_kwargs", "skip_compiled", "is_padding"),
        ),
        uses=0,
    ),
    Target(LEARNING, "load_model", _WORKER, "Worker.load_model", ("self", "load_dummy_weights"), uses=1),
    Target(LEARNING, "warmed_up", _WORKER, "Worker.compile_or_warm_up_model", ("self",), uses=1),
    Target(
        RUNNER,
        "capture",
        "vllm.v1.worker.gpu.cudagraph_utils",
        "CudaGraphManager.capture",
        ("self", "create_forward_fn", "progress_bar_desc"),
        uses=2,
    ),
    Target(
        OLD_RUNNER,
        "capture_shape",
        "vllm.v1.worker.gpu_model_runner",
        "GPUModelRunner._warmup_and_capture",
        (
            *("self", "desc", "cudagraph_runtime_mode", "profile_seq_lens", "allow_microbatching", "num_warmups"),
            "profiler",
        ),
        uses=3,
    ),
    Target(
        OLD_RUNNER,
        "graph_wrapper",
        "vllm.compilation.cuda_graph",
        "CUDAGraphWrapper.__call__",
        ("self", "args", "kwargs"),
        uses=1,
    ),
    Target(JOIN, "join", f"{_OFFLOADER}.base", "BaseOffloader.join_after_forward", ("self",), uses=1),
    Target(JOIN, "join", f"{_OFFLOADER}.prefetch", "PrefetchOffloader.join_after_forward", ("self",), uses=1),
    _collective(ALL_REDUCE, "all_reduce", "_all_reduce_out_place", "input_"),
    _collective(ALL_GATHER, "all_gather", "_all_gather_out_place", "input_", "dim"),
    _collective(ALL_GATHER, "all_gather", "all_gatherv", "input_", "dim", "sizes"),
    _collective(REDUCE_SCATTER, "reduce_scatter", "_reduce_scatter_out_place", "input_", "dim"),
    _collective(REDUCE_SCATTER, "reduce_scatter", "reduce_scatterv", "input_", "dim", "sizes"),
    Target(
        FUSED,
        "fused_all_reduce",
        "flashinfer.comm.allreduce",
        "allreduce_fusion",
        (
            *("input", "workspace", "pattern", "launch_with_pdl", "trigger_completion_at_end", "output"),
            *("residual_out", "norm_out", "quant_out", "scale_out", "residual_in", "rms_gamma", "rms_eps"),
            *("scale_factor", "layout_code", "use_oneshot", "fp32_acc", "moe_reduction_device_num_experts"),
            *("moe_reduction_scale_input", "moe_reduction_active_experts_token_input", "moe_reduction_token_input"),
            *("expanded_idx_to_permuted_idx", "expert_scale_factor", "shared_expert_output"),
            *("block_quant_group_size", "weight_bias", "moe_finalize_backend"),
        ),
        uses=1,
        optional=True,
    ),
    Target(
        STREAMED,
        "experts",
        _EXPERTS,
        "RoutedExperts.forward_modular",
        ("self", "x", "topk_weights", "topk_ids", "shared_experts", "shared_experts_input"),
        uses=2,
        optional=True,
    ),
    Target(
        STREAMED,
        "experts",
        _EXPERTS,
        "RoutedExperts.forward_monolithic",
        ("self", "x", "router_logits", "input_ids"),
        uses=2,
        optional=True,
    ),
    _worker("sleep", "sleep", "level"),
    _worker("wake", "wake_up", "tags", uses=2),
    _worker("update", "reload_weights", "args", "kwargs"),
    _worker("start", "_start_weight_update", "is_draft", optional=True),
    _worker("chunk", "update_weights", "update_info", optional=True),
    _worker("finish", "finish_weight_update", optional=True),
    _worker("update", "elastic_ep_execute", "execute_method", "args", "kwargs", optional=True),
)
