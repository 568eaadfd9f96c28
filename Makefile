# dsv41_l2pf: what a person types. The work is in tools/*.sh, CMakeLists.txt and setup.py.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
export L2PF_CUDA_ARCHS L2PF_GTEST_SOURCE CMAKE_ARGS

FORMATTED = $(shell git ls-files -co --exclude-standard '*.h' '*.cpp' '*.cuh' '*.cu')

.PHONY: help demo test build gpu sanitize-gpu nccl-one-gpu multi-gpu bench bench-build sanitize fuzz soak sglang-h200 wheels format clean
help:
	@echo "make demo    run the main job: learn, prefetch, compare, one table and one picture"
	@echo "make test    run every test that needs no GPU"
	@echo "make test-engines  test the hooks in real SGLang, b12x and vLLM (20 GB of venvs, made once)"
	@echo "make build   make the venv and build libdsv41_l2pf.so"
	@echo "make gpu     build and test the GPU half with the current python3's torch, no network; then the demo"
	@echo "make sanitize-gpu  run the GPU's tests under compute-sanitizer, after make gpu"
	@echo "make nccl-one-gpu  test two NCCL ranks as two processes on one GPU"
	@echo "make multi-gpu     benchmark and test on a machine with several GPUs, in under 9 minutes"
	@echo "make bench   build and run the benchmarks with the current python3's torch, no network; benchmarks/README.md"
	@echo "make sanitize  run the C++ tests under ThreadSanitizer, AddressSanitizer and UBSan"
	@echo "make fuzz    fuzz plans and tables with libFuzzer, FUZZ_SECONDS=600 each (clang++)"
	@echo "make soak    change everything about a running decode step at random, SOAK_SECONDS=540, with the current python3's torch"
	@echo "make sglang-h200  a real SGLang 0.5.16 on this machine's GPU with and without the plugin; tools/sglang_kit.sh first"
	@echo "make wheels  build the wheels for x86_64 and aarch64 and the source distribution into dist/, and check them"
	@echo "make format  clang-format the C++ and CUDA sources"
	@echo "make clean   remove what was built (the venv stays)"
	@echo "Variables: L2PF_CUDA_ARCHS='90;120-real'  CMAKE_ARGS='-DL2PF_CUDA=OFF'  L2PF_GTEST_SOURCE=<its source tree>"

# $(1): what for, build or test.  $(2): whether the C++ tests are built too, ON or OFF.
define build_for
	@echo "==> checking tools"
	@tools/check_tools.sh $(1)
	@echo "==> making the venv (or reusing it)"
	@python=$$(tools/venv.sh); \
	echo "==> building with $$python"; \
	L2PF_BUILD_TESTS=$(2) tools/build.sh $$python
endef

build:
	$(call build_for,build,OFF)

demo: build
	@echo "==> running the demo"
	@$$(tools/venv.sh) -m dsv41_l2pf demo

test:
	$(call build_for,test,ON)
	@status=0; \
	echo "==> running the C++ tests that need no GPU"; \
	ctest --test-dir build --label-exclude cuda --output-on-failure --no-tests=error || status=1; \
	echo "==> running the Python tests that need no GPU"; \
	$$(tools/venv.sh) -m pytest -m "not cuda and not two_gpus" || status=1; \
	exit $$status

test-engines:
	@[ -f dsv41_l2pf/lib/libdsv41_l2pf.so ] || $(MAKE) build
	@tools/engine_tests.sh

gpu:
	@tools/gpu.sh

sanitize-gpu:
	@tools/sanitize_gpu.sh

nccl-one-gpu:
	@tools/nccl_one_gpu.sh

multi-gpu:
	@tools/multi_gpu.sh

bench:
	@tools/bench.sh gap decode transformers dispatch

bench-build:
	@tools/bench.sh --build-only

sanitize:
	@tools/sanitize.sh

fuzz:
	@tools/fuzz.sh $(or $(FUZZ_SECONDS),600)

soak:
	@python3 tests/soak.py --seconds $(or $(SOAK_SECONDS),540) --record

sglang-h200:
	@tools/sglang_h200.sh install
	@tools/sglang_h200.sh run

wheels:
	@tools/check_tools.sh build
	@tools/wheels.sh

format:
	@echo "==> formatting"
	@clang-format -i $(FORMATTED)

clean:
	@echo "==> removing what was built"
	@rm -rf build build-gpu build-bench build-wheels build-fuzz build-sanitize-* dist *.egg-info dsv41_l2pf/lib benchmarks/lib dsv41_l2pf_demo.png
