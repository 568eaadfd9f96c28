#!/usr/bin/env bash
# try_wheel_aarch64.sh WHEEL [TORCH_VERSION]: the aarch64 wheel on an emulated aarch64 CPU. Debian's arm64 userland and
# torch's own aarch64 wheel run under qemu-user: first the core's GoogleTests, cross-compiled, then the operators' and
# the hooks' Python tests against the wheel. About 6 GB in a folder that stays (printed first); root, for debootstrap.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ "$#" -lt 1 ]; then
  echo "try_wheel_aarch64.sh: expected WHEEL [TORCH_VERSION], got nothing" >&2
  exit 2
fi
wheel="$(realpath "$1")"
version="${2:-2.11.0}"
for tool in qemu-aarch64-static:qemu-user-static debootstrap:debootstrap aarch64-linux-gnu-g++:g++-aarch64-linux-gnu; do
  command -v "${tool%%:*}" >/dev/null || { echo "missing: ${tool%%:*}: install Debian's ${tool##*:}" >&2; exit 1; }
done
folder="${XDG_CACHE_HOME:-$HOME/.cache}/dsv41_l2pf/aarch64-$version"
userland="$folder/userland"
packages="$folder/packages"
echo "==> aarch64: everything is in $folder"
mkdir -p "$folder"

if [ ! -f "$userland/.complete" ]; then
  echo "==> aarch64: Debian's arm64 userland"
  rm -rf "$userland"
  debootstrap --arch=arm64 --foreign --variant=minbase --include=python3,libgomp1,libstdc++6 bookworm "$userland" >/dev/null
  # What debootstrap would do inside, on the emulated machine, we do not need: the files are enough.
  for archive in "$userland"/var/cache/apt/archives/*.deb; do dpkg-deb -x "$archive" "$userland"; done
  touch "$userland/.complete"
fi
if [ ! -f "$packages/.complete" ]; then
  echo "==> aarch64: torch $version and pytest"
  rm -rf "$packages"
  platforms=()
  for glibc in $(seq 17 40); do platforms+=(--platform "manylinux_2_${glibc}_aarch64"); done
  python3 -m pip install --quiet --no-compile "${platforms[@]}" --platform manylinux2014_aarch64 \
    --python-version 3.11 --implementation cp --only-binary=:all: --target "$packages" \
    "torch==$version" numpy typer rich expecttest hypothesis pytest
  touch "$packages/.complete"
fi
echo "==> aarch64: the core's C++ tests"
cmake -S . -B "$folder/build" -DCMAKE_TOOLCHAIN_FILE="$PWD/cmake/aarch64.cmake" -DL2PF_TORCH=OFF -DL2PF_CUDA=OFF \
  -DL2PF_GTEST_SOURCE="${L2PF_GTEST_SOURCE:-/usr/src/googletest}" \
  -DCMAKE_CROSSCOMPILING_EMULATOR="qemu-aarch64-static;-L;$userland" >/dev/null
cmake --build "$folder/build" --parallel "$(nproc)" >/dev/null
ctest --test-dir "$folder/build" --output-on-failure --no-tests=error | tail -n 5

echo "==> aarch64: the wheel"
rm -rf "$folder/wheel" "$folder/tests"
python3 -m zipfile -e "$wheel" "$folder/wheel"
mkdir "$folder/tests"
cp tests/conftest.py tests/three_linears.py tests/test_{ops,by_hand,attach,prefetcher,pause,weights,watching,lifetimes}.py "$folder/tests"
printf '[pytest]\nmarkers = cuda: needs a GPU\n' >"$folder/pytest.ini"
cd "$folder"
emulated=(qemu-aarch64-static -L "$userland" -E "HOME=$folder" -E LANG=C.UTF-8 -E PYTHONDONTWRITEBYTECODE=1
  -E "PYTHONPATH=$folder/wheel:$packages" -E "LD_LIBRARY_PATH=$packages/torch/lib$(printf ":%s" "$packages"/nvidia/*/lib)"
  "$userland/usr/bin/python3.11")
"${emulated[@]}" -c 'import platform, torch, dsv41_l2pf; print(platform.machine(), "torch", torch.__version__, dsv41_l2pf.status())'
# Those whose child processes would have to be emulated too are left out.
"${emulated[@]}" -m pytest -q -p no:cacheprovider tests -k "not interpreter_exits"
