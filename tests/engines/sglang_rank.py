"""One rank of a real SGLang model runner on the CPU: real groups, layers, models, batches and samplers.

Replaced: the rotary kernel (stubs/vllm), and NCCL, whose library is declared missing, so that groups use gloo. SGLang then
takes its CPU way through `GroupCoordinator.all_reduce` and `all_gather`.
"""

import json
import os
from array import array
from pathlib import Path

import torch

LAYERS, HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM, VOCABULARY = 3, 256, 512, 4, 2, 64, 1024
NUM_RANKS = 2
STUBS = Path(__file__).resolve().parent / "stubs"
MODEL_PATH = os.environ.get("L2PF_MODEL", "")
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
    "rope_theta": 500000.0,
}
# What SGLang needs to serve where there is no GPU, as its server's own arguments.
ARGUMENTS = {
    "load_format": "dummy",
    "device": "cpu",
    "attention_backend": "torch_native",
    "sampling_backend": "pytorch",
    "grammar_backend": "none",
    "disable_cuda_graph": True,
    "disable_radix_cache": True,
    "skip_tokenizer_init": True,
    "max_total_tokens": 2048,
    "mem_fraction_static": 0.1,
}
ENVIRONMENT = {
    "SGLANG_NCCL_SO_PATH": "/there/is/no/nccl.so",
    "SGLANG_CPU_OMP_THREADS_BIND": "0|0",
    "GLOO_SOCKET_IFNAME": "lo",
}
# Bytes of the weights of one rank.
QKV_BYTES = (HEADS + 2 * KV_HEADS) * HEAD_DIM // NUM_RANKS * HIDDEN * 2
O_BYTES = HIDDEN * HEADS * HEAD_DIM // NUM_RANKS * 2
GATE_UP_BYTES = 2 * INNER // NUM_RANKS * HIDDEN * 2
DOWN_BYTES = HIDDEN * INNER // NUM_RANKS * 2
LM_HEAD_BYTES = VOCABULARY // NUM_RANKS * HIDDEN * 2


def write_model(folder: Path, **changes) -> str:
    """A folder with a Llama's config.json; SGLang makes up the weights."""
    (folder / "config.json").write_text(json.dumps({**LLAMA, **changes}))
    return str(folder)


class Rank:
    """A loaded model on one rank of two, inside a gloo group that exists already."""

    def __init__(self, rank: int, model_path: str, **arguments) -> None:
        os.environ.update(ENVIRONMENT)
        from sglang.benchmark import one_batch
        from sglang.srt.runtime_context import SpawnRanks, publish, spawn_world_rank
        from sglang.srt.server_args import PortArgs, ServerArgs

        self.one_batch = one_batch
        one_batch.get_tokenizer = lambda *args, **kwargs: None
        server_args = ServerArgs(model_path=model_path, tp_size=NUM_RANKS, **ARGUMENTS, **arguments)
        publish(
            server_args,
            role="scheduler",
            ranks=SpawnRanks(world_rank=spawn_world_rank(server_args, tp_rank=rank, pp_rank=0), gpu_id=rank),
        )
        one_batch._init_process_global_configs()
        self.bench, _ = one_batch.load_model(server_args, PortArgs.init_new(server_args), rank, rank)
        self.runner = self.bench.torch_runner

    @property
    def model(self) -> torch.nn.Module:
        return self.runner.model

    def generate(self, num_requests: int = 2, num_tokens: int = 4) -> list[torch.Tensor]:
        """Greedy decoding of fixed prompts: the logits of every step, the prefill first."""
        from sglang.srt.managers.schedule_batch import Req
        from sglang.srt.sampling.sampling_params import SamplingParams

        self.bench.clear()
        requests = []
        for index in range(num_requests):
            prompt = array("q", range(10 * index + 3, 10 * index + 9))
            parameters = SamplingParams(temperature=0, max_new_tokens=num_tokens)
            request = Req(rid=str(index), origin_input_text="", origin_input_ids=prompt, sampling_params=parameters)
            request.full_untruncated_fill_ids = prompt
            request.logprob_start_len = -1
            request.extend_end = len(prompt)
            requests.append(request)
        tokens, logits, batch = self.bench.extend(requests)
        steps = [logits.clone()]
        for _ in range(num_tokens):
            tokens, logits = self.bench.decode(tokens, batch)
            steps.append(logits.clone())
        return steps
