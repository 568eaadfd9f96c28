"""The functions of SGLang that are hooked. Recorded from sglang 0.5.23."""

from __future__ import annotations

from .targets import Target

VERSION = "0.5.23"
_SRT = "sglang.srt"
_QUANTIZATION = f"{_SRT}.layers.quantization"
_PARALLEL = f"{_SRT}.distributed.parallel_state"
DEEPSEEK_V4 = f"{_SRT}.models.deepseek_v4"
FUSION = f"{_SRT}.layers.flashinfer_comm_fusion"
_UPDATER = f"{_SRT}.model_executor.model_runner_components.weight_updater"
_SCHEDULER_UPDATER = f"{_SRT}.managers.scheduler_components.weight_updater"

# What depends on each part. Without the first two nothing is done: no bracket, or weights that change unseen.
FORWARD, UPDATES = "forward bracket", "weight updates"
ESSENTIAL = (FORWARD, UPDATES)
ALL_REDUCE, ALL_GATHER = "all-reduce windows", "all-gather windows"
REDUCE_SCATTER, FUSED = "reduce-scatter windows", "fused all-reduce windows"
LINEARS, ROUTER, WO_A, LM_HEAD = "linear weights", "router weights", "wo_a weights", "lm_head weights"
EXPERTS = "streamed experts"
CAPTURE, DUMMIES, TUNING = "graph variants", "dummy runs", "tuning of decode graphs"


def _collective(part: str, role: str, name: str, *parameters: str, uses: int = 2, optional: bool = False) -> Target:
    return Target(part, role, _PARALLEL, f"GroupCoordinator.{name}", ("self", *parameters), uses, optional)


def _linear(module: str, cls: str, *, optional: bool = False) -> Target:
    parameters = ("self", "layer", "x", "bias")
    return Target(LINEARS, "linear", f"{_QUANTIZATION}.{module}", f"{cls}.apply", parameters, 3, optional)


def _update(role: str, module: str, name: str, *parameters: str, optional: bool = False) -> Target:
    return Target(UPDATES, role, module, name, ("self", *parameters), 1, optional)


TARGETS = (
    Target(
        FORWARD,
        "load_model",
        f"{_SRT}.model_executor.model_runner",
        "ModelRunner.load_model",
        ("self",),
        uses=1,
    ),
    Target(
        FORWARD,
        "model_forward",
        DEEPSEEK_V4,
        "DeepseekV4Model.forward",
        ("self", "input_ids", "positions", "forward_batch", "input_embeds", "pp_proxy_tensors"),
        uses=4,
    ),
    Target(
        CAPTURE,
        "capture_shape",
        f"{_SRT}.model_executor.runner.decode_cuda_graph_runner",
        "DecodeCudaGraphRunner.capture_one_shape",
        ("self", "size", "forward", "stream_idx", "variant_label", "attention_variant"),
        uses=5,
    ),
    Target(
        TUNING,
        "capture_graph",
        f"{_SRT}.model_executor.runner_backend.full_cuda_graph_backend",
        "FullCudaGraphBackend.capture_one",
        ("self", "shape_key", "forward_fn", "capture_inputs", "post_warmup_hook"),
        uses=3,
    ),
    Target(DUMMIES, "dummy", f"{_SRT}.model_executor.runner.base_runner", "BaseRunner.warmup", ("self",), uses=1),
    Target(
        DUMMIES,
        "dummy",
        f"{_SRT}.model_executor.runner.flashinfer_autotune",
        "run_flashinfer_autotune_forward",
        ("model_runner", "forward_fn", "run_lm_head"),
        uses=0,
        optional=True,
    ),
    _collective(ALL_REDUCE, "all_reduce", "all_reduce", "input_"),
    _collective(ALL_REDUCE, "all_reduce_body", "_all_reduce_in_place", "input_"),
    _collective(ALL_REDUCE, "all_reduce_body", "_all_reduce_out_place", "input_", "outplace_all_reduce_method"),
    _collective(ALL_REDUCE, "all_reduce_body", "_flashinfer_allreduce", "input_", optional=True),
    _collective(ALL_GATHER, "all_gather", "all_gather", "input_", "dim", "output_tensor_list"),
    _collective(ALL_GATHER, "all_gather", "all_gatherv", "input_", "sizes", "output", optional=True),
    _collective(ALL_GATHER, "all_gather_into", "_all_gather_into_tensor", "output", "input", uses=3),
    _collective(
        REDUCE_SCATTER, "reduce_scatter_into", "_reduce_scatter_tensor", "output", "input", uses=3, optional=True
    ),
    _collective(REDUCE_SCATTER, "reduce_scatter", "reduce_scatterv", "input_", "output", "sizes", optional=True),
    Target(
        FUSED,
        "fused_all_reduce",
        FUSION,
        "flashinfer_allreduce_residual_rmsnorm",
        (
            *("input_tensor", "residual", "weight", "eps", "max_token_num", "use_oneshot"),
            *("trigger_completion_at_end", "fp32_acc", "use_attn_tp_group"),
        ),
        uses=3,
        optional=True,
    ),
    Target(
        LINEARS,
        "fp8_linear",
        f"{_QUANTIZATION}.fp8",
        "Fp8LinearMethod.apply",
        ("self", "layer", "x", "bias"),
        uses=3,
    ),
    Target(
        LINEARS,
        "mxfp8_function",
        f"{_QUANTIZATION}.fp8_utils",
        "flashinfer_mxfp8_blockscaled_linear",
        ("input", "weight", "weight_scale", "input_scale", "bias", "output_dtype", "backend", "pin_tactic"),
        uses=3,
    ),
    _linear("unquant", "UnquantizedLinearMethod"),
    Target(
        LINEARS,
        "linear",
        f"{_QUANTIZATION}.unquant",
        "UnquantizedLinearMethod.apply_into",
        ("self", "layer", "x", "output", "bias"),
        uses=3,
        optional=True,
    ),
    Target(
        LINEARS,
        "linear",
        f"{_QUANTIZATION}.unquant",
        "UnquantizedLinearMethod.apply_with_addend",
        ("self", "layer", "x", "addend", "bias"),
        uses=3,
        optional=True,
    ),
    _linear("modelopt_quant", "ModelOptFp8LinearMethod"),
    _linear("modelopt_quant", "ModelOptFp4LinearMethod"),
    _linear("modelopt_quant", "ModelOptNvFp4A16LinearMethod", optional=True),
    _linear("w8a8_fp8", "W8A8Fp8LinearMethod"),
    _linear("w8a8_int8", "W8A8Int8LinearMethod"),
    _linear("blockwise_int8", "BlockInt8LinearMethod"),
    _linear("compressed_tensors.compressed_tensors", "CompressedTensorsLinearMethod"),
    _linear("gptq.gptq", "GPTQLinearMethod", optional=True),
    _linear("gptq.gptq", "GPTQMarlinLinearMethod", optional=True),
    _linear("awq.awq", "AWQLinearMethod", optional=True),
    _linear("quark.quark", "QuarkLinearMethod", optional=True),
    _linear("humming", "HummingLinearMethod", optional=True),
    _linear("petit", "PetitNvFp4LinearMethod", optional=True),
    _linear("bitsandbytes", "BitsAndBytesLinearMethod", optional=True),
    _linear("gguf", "GGUFLinearMethod", optional=True),
    Target(
        ROUTER,
        "gate",
        f"{_SRT}.models.deepseek_v2",
        "MoEGate.forward",
        ("self", "hidden_states", "gemm_output_zero_allocator", "forward_batch"),
        uses=1,
    ),
    Target(
        ROUTER,
        "second_argument",
        "sglang.kernels.ops.gemm.tiny_gemm",
        "tiny_gemm_bf16",
        ("x", "w", "out", "out_dtype", "n_split", "max_m"),
        uses=2,
        optional=True,
    ),
    Target(
        WO_A,
        "wo_a",
        DEEPSEEK_V4,
        "_apply_wo_a_bf16_matmul",
        (
            *("o", "wo_a", "is_decode", "is_target_verify", "fuse_mxfp8_quant"),
            *("is_prefill", "fast_path", "fp8_grid", "emit_fp8"),
        ),
        uses=2,
        optional=True,
    ),
    Target(
        WO_A,
        "wo_a_fp8",
        DEEPSEEK_V4,
        "_fp8_wo_a_einsum",
        ("o_fp8", "o_s", "weight", "weight_scale", "recipe", "out"),
        uses=4,
        optional=True,
    ),
    Target(
        WO_A,
        "second_weight",
        "sglang.kernels.ops.attention.dsv4.wo_a",
        "fused_rope_wo_a_bf16",
        ("x", "weight", "freqs_cis", "positions", "out_mxfp8"),
        uses=2,
        optional=True,
    ),
    Target(
        LM_HEAD,
        "lm_head",
        f"{_SRT}.layers.logits_processor",
        "LogitsProcessor._compute_lm_head",
        ("self", "hidden_states", "lm_head", "embedding_bias", "out"),
        uses=3,
        optional=True,
    ),
    Target(
        EXPERTS,
        "experts",
        f"{_SRT}.layers.moe.fused_moe_triton.layer",
        "FusedMoE.forward_impl",
        ("self", "hidden_states", "topk_output", "pre_quant_input"),
        uses=2,
        optional=True,
    ),
    _update(
        "update",
        _UPDATER,
        "WeightUpdater.update_weights_from_disk",
        "model_path",
        "load_format",
        "weight_name_filter",
        "recapture_cuda_graph",
    ),
    _update("update", _UPDATER, "WeightUpdater.update_weights_from_tensor", "named_tensors", "load_format"),
    _update("update", _UPDATER, "WeightUpdater.update_weights_from_ipc", "recv_req"),
    _update("update", _UPDATER, "WeightUpdater.load_weights_from_distributed", "named_tensors", optional=True),
    _update(
        "update",
        _UPDATER,
        "WeightUpdater.update_weights_from_distributed",
        "names",
        "dtypes",
        "shapes",
        "group_name",
        "load_format",
        optional=True,
    ),
    _update(
        "recapture",
        f"{_SRT}.model_executor.model_runner",
        "ModelRunner.recapture_decode_cuda_graph",
        optional=True,
    ),
    _update("pause", _UPDATER, "WeightUpdater.begin_weight_update", optional=True),
    _update("resume", _UPDATER, "WeightUpdater.end_weight_update", "run_post_load", optional=True),
    _update("sleep", _SCHEDULER_UPDATER, "SchedulerWeightUpdaterManager.release_memory_occupation", "recv_req"),
    _update("wake", _SCHEDULER_UPDATER, "SchedulerWeightUpdaterManager.resume_memory_occupation", "recv_req"),
    _update("update", f"{_SRT}.lora.lora_manager", "LoRAManager.load_lora_adapter", "lora_ref"),
    _update("update", f"{_SRT}.lora.lora_manager", "LoRAManager.unload_lora_adapter", "lora_ref"),
    _update(
        "update",
        f"{_SRT}.lora.lora_manager",
        "LoRAManager.load_lora_adapter_from_tensors",
        "lora_ref",
        "tensors",
        "config_dict",
        "added_tokens_config",
        optional=True,
    ),
)
