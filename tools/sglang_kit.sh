#!/usr/bin/env bash
# sglang_kit.sh: downloads what a real SGLang 0.5.16 (it pins torch 2.11.0) needs on a GPU machine that has torch and
# Python 3.12 but no network. Three git-ignored folders, each under 48 MiB, brought there one after the other;
# sglang-kernel is cut down to what a Llama on sm_90 loads (flash_ops alone is 1.1 GB).
set -euo pipefail
cd "$(dirname "$0")/.."
out=.sgkit
platforms=(--platform manylinux2014_x86_64 --platform manylinux1_x86_64)
for glibc in 34 28 27 26 24 17 5; do platforms+=(--platform "manylinux_2_${glibc}_x86_64"); done

get() { # FOLDER REQUIREMENT...
  local folder="$1" requirement
  shift
  for requirement in "$@"; do  # one by one: their own pins do not agree
    python3 -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
      "${platforms[@]}" --dest "$folder" "$requirement"
  done
}

mkdir -p "${out}1" "${out}2" "${out}3"
get "${out}1" sglang==0.5.16 tokenizers==0.22.2 orjson pybase64 starlette IPython traitlets pyzmq dill msgspec openai \
  httpx2 httpcore2 sniffio partial_json_parser apache-tvm-ffi==0.1.11 compressed_tensors loguru gguf setproctitle \
  python-multipart uvicorn distro jiter pydantic pydantic-core annotated-types fastapi opentelemetry-api \
  opentelemetry-sdk opentelemetry-semantic-conventions typing-inspection huggingface_hub==1.33.0 typing_extensions \
  interegular
get "${out}2" xgrammar==0.2.1
get "${out}3" transformers==5.12.1 flashinfer_python==0.6.14
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
get "$work" sglang-kernel==0.4.5
(
  cd "$work"
  python3 -m zipfile -e sglang_kernel-*.whl .
  rm -rf sgl_kernel/flash_ops* sgl_kernel/infllm_ops* sgl_kernel/flashmla_ops* sgl_kernel/sm100
  tar cJf kernel.tar.xz sgl_kernel sglang_kernel*.dist-info
)
mv "$work/kernel.tar.xz" "${out}1/sgl_kernel.tar.xz"
du -sm "${out}"[123]
