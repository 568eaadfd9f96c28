"""SGLang's real group coordinators and layers on two gloo ranks, one collective at a time."""


import pytest
import sglang_rank
import torch
from gloo import run_on_two_ranks

ROWS, HIDDEN = 4, 256


def _groups(rank):
    from sglang.srt.distributed import parallel_state

    parallel_state.init_distributed_environment(world_size=2, rank=rank, local_rank=rank, backend="gloo")

    def group(name, ranks):
        return parallel_state.init_model_parallel_group(
            ranks, rank, "gloo", group_name=name, use_pynccl=False, use_custom_allreduce=False, use_mscclpp=False,
            use_torch_symm_mem_allreduce=False,
        )  # fmt: skip

    return group("tp", [[0, 1]]), group("pp", [[0, 1]]), group("tp", [[0], [1]])


def _collectives(session, rank):
    """Each way into a collective, with what it returned and how many collectives the library numbered."""
    import os

    os.environ.update(sglang_rank.ENVIRONMENT)
    from sglang.srt.distributed import parallel_state

    tp, pp, alone = _groups(rank)
    model = torch.nn.Linear(HIDDEN, HIDDEN, bias=False).requires_grad_(False)
    mine = torch.full((ROWS, HIDDEN), float(rank + 1))

    def gathered_into(group):
        output = torch.empty(2 * ROWS, HIDDEN)
        group._all_gather_into_tensor(output, mine)
        return output

    def scattered(group):
        output = torch.empty(ROWS // 2, HIDDEN)
        group._reduce_scatter_tensor(output, mine)
        return output

    # SGLang registers its opaque operators for CUDA alone.
    library = torch.library.Library("sglang", "FRAGMENT")
    library.impl("inplace_all_reduce", parallel_state.inplace_all_reduce.__wrapped__, "CPU")

    @torch.compile(fullgraph=True, backend="eager")
    def compiled(tensor, group_name):
        parallel_state.inplace_all_reduce(tensor, group_name=group_name)
        return tensor

    def out_of_place(group):
        # Nested: the out-of-place body falls back to the in-place one.
        return group._all_reduce_out_place(mine, "auto")

    steps = {
        "all_reduce": lambda: tp.all_reduce(mine.clone()),
        "compiled": lambda: compiled(mine.clone(), tp.unique_name),
        "out_of_place": lambda: out_of_place(tp),
        "all_gather": lambda: tp.all_gather(mine, dim=0),
        "into": lambda: gathered_into(tp),
        "reduce_scatter": lambda: scattered(tp),
        "pp": lambda: pp.all_reduce(mine.clone()),
        "alone": lambda: alone.all_reduce(mine.clone()),
    }
    found = {}
    for name, step in steps.items():
        for _ in range(2):
            with session.forward(model, ROWS, f"decode/{name}"):
                result = step()
                torch.ops.dsv41.record_weight([model.weight])
        (signature,) = [s for s in session.prefetcher.status()["signatures"] if s["mode"] == f"decode/{name}"]
        kinds = [window["kind"] for window in signature["windows"]]
        found[name] = (result.unique().tolist(), tuple(result.shape), signature["num_collectives"], kinds)
    assert parallel_state.GroupCoordinator.all_reduce.__wrapped__
    return found


def _mxfp8(session):
    """A real MXFP8 method on each FlashInfer backend: what the GEMM read, and what was recorded.

    Replaced: FlashInfer's quantization and GEMM kernels, and the question which backend this GPU has.
    """
    from sglang.srt.layers.quantization import fp8, fp8_utils

    read = []

    def mm_mxfp8(a, b, a_scale, b_scale, out_dtype, use_8x4_sf_layout, backend):
        read.append((b.data_ptr(), b_scale.data_ptr()))
        return a.to(out_dtype) @ b.to(out_dtype)

    fp8_utils.flashinfer_mxfp8_quantize = lambda x, is_sf_swizzled_layout, alignment: (x, None)
    fp8_utils.flashinfer_mm_mxfp8 = mm_mxfp8
    config = fp8.Fp8Config(is_checkpoint_fp8_serialized=True, weight_block_size=[1, 32], use_mxfp8=True)
    config.convert_mxfp8_to_block_fp8 = False
    x, anchor, found = torch.ones(ROWS, HIDDEN, dtype=torch.bfloat16), torch.ones(1), {}
    for word in ("CUTLASS", "CUTEDSL", "TRTLLM"):
        backend = fp8_utils.Mxfp8DenseGemmBackend[f"FLASHINFER_{word}"]
        fp8.resolve_mxfp8_dense_gemm_backend = fp8_utils.resolve_mxfp8_dense_gemm_backend = lambda chosen=backend: chosen
        method = fp8.Fp8LinearMethod(config)
        layer = torch.nn.Module()
        layer.weight = torch.nn.Parameter(torch.ones(HIDDEN, HIDDEN).to(torch.float8_e4m3fn), requires_grad=False)
        for name in ("weight_scale_inv", "weight_scale_inv_swizzled", "weight_scale_inv_shuffled"):
            scale = torch.ones(HIDDEN * HIDDEN // 32, dtype=torch.uint8)
            layer.register_parameter(name, torch.nn.Parameter(scale, requires_grad=False))
        mode = f"decode/{word}"
        for _ in range(2):
            with session.forward(layer, ROWS, mode):
                torch.ops.dsv41.collective_begin(anchor, "all_reduce")
                torch.ops.dsv41.collective_end(anchor)
                output = method.apply(layer, x)
        segments = [(address, size) for _, address, size in session.prefetcher.plan_segments(ROWS, mode, layer)]
        named = {weight.data_ptr(): name for name, weight in layer.named_parameters()}
        found[word] = {
            "read": [named[address] for address in read[-1]],
            "planned": [named[address] for address, _ in segments],
            "sizes": [size for _, size in segments],
            "output": output.unique().tolist(),
        }
    return found


def _compiled_layers(session):
    """The hooks inside compiled code: one graph, nothing recorded while it is traced, the same result."""
    from sglang.srt.layers.quantization.unquant import UnquantizedLinearMethod

    layer = torch.nn.Linear(HIDDEN, HIDDEN, bias=False).requires_grad_(False)
    method = UnquantizedLinearMethod()
    x = torch.ones(ROWS, HIDDEN)
    expected = method.apply(layer, x)
    compiled = torch.compile(lambda x: method.apply(layer, x), fullgraph=True, backend="eager")
    with session.forward(layer, ROWS, "decode/layers"):
        anchor = torch.ones(1)
        torch.ops.dsv41.collective_begin(anchor, "all_reduce")
        torch.ops.dsv41.collective_end(anchor)
        equal = torch.equal(compiled(x), expected)
    return equal, session.prefetcher.plan_segments(ROWS, "decode/layers", layer)


def _run(rank):
    from sglang.srt.plugins import load_plugins

    load_plugins()
    from dsv41_l2pf.integrations import sglang

    session = sglang.session()
    return {"collectives": _collectives(session, rank), "mxfp8": _mxfp8(session), "compiled layers": _compiled_layers(session)}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DSV41_L2_PREFETCH", "1")
        return run_on_two_ranks(_run, tmp_path_factory.mktemp("sglang_groups"), timeout_s=240)


@pytest.mark.parametrize(
    ("step", "values", "rows", "num_collectives", "kinds"),
    [
        ("all_reduce", [3.0], ROWS, 1, ["all_reduce"]),
        ("compiled", [3.0], ROWS, 1, ["all_reduce"]),
        ("out_of_place", [3.0], ROWS, 1, ["all_reduce"]),
        ("all_gather", [1.0, 2.0], 2 * ROWS, 1, ["all_gather"]),
        ("into", [1.0, 2.0], 2 * ROWS, 1, ["all_gather"]),
        ("reduce_scatter", [3.0], ROWS // 2, 1, ["reduce_scatter"]),
        ("pp", [3.0], ROWS, 0, []),
    ],
)
def test_a_collective_is_numbered_once_and_right(results, step, values, rows, num_collectives, kinds):
    for result in results:
        assert result["collectives"][step] == (values, (rows, HIDDEN), num_collectives, kinds)


def test_a_group_of_one_has_no_collective(results):
    for rank, result in enumerate(results):
        assert result["collectives"]["alone"] == ([rank + 1.0], (ROWS, HIDDEN), 0, [])


@pytest.mark.parametrize(
    ("backend", "scale"),
    [
        ("CUTLASS", "weight_scale_inv_swizzled"),
        ("CUTEDSL", "weight_scale_inv_swizzled"),
        ("TRTLLM", "weight_scale_inv_shuffled"),
    ],
)
def test_an_mxfp8_linear_is_planned_as_its_kernel_reads_it(results, backend, scale):
    for result in results:
        found = result["mxfp8"][backend]
        assert found["read"] == found["planned"] == ["weight", scale]
        assert found["sizes"] == [HIDDEN * HIDDEN, HIDDEN * HIDDEN // 32]
        assert found["output"] == [HIDDEN]


def test_hooks_inside_compiled_code_break_no_graph(results):
    for result in results:
        assert result["compiled layers"] == (True, [])
