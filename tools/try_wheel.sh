#!/usr/bin/env bash
# try_wheel.sh WHEEL TORCH_VERSION...: installs the wheel beside each torch in a venv of its own, as a user would, and
# runs the operators' and the hooks' tests against it, with neither a compiler nor a CUDA toolkit on PATH.
# A venv takes 5 GB and is deleted again.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ "$#" -lt 2 ]; then
  echo "try_wheel.sh: expected WHEEL TORCH_VERSION..., got $# words" >&2
  exit 2
fi
wheel="$(realpath "$1")"
shift
status=0
for version in "$@"; do
  folder="$(mktemp -d)"
  echo "==> torch $version: installing"
  python3 -m venv "$folder/venv"
  "$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    "torch==$version" numpy expecttest hypothesis pytest pytest-timeout "$wheel"
  # The tests leave the checkout: what they import can only be the wheel.
  mkdir "$folder/tests"
  cp tests/conftest.py tests/three_linears.py tests/test_{ops,by_hand,attach,prefetcher,pause,weights,watching,lifetimes}.py "$folder/tests"
  printf '[pytest]\nmarkers = cuda: needs a GPU\n' >"$folder/pytest.ini"
  alone=(env -i HOME="$folder" PATH="$folder/venv/bin" LANG=C.UTF-8)
  (
    cd "$folder"
    "${alone[@]}" venv/bin/python -c 'import dsv41_l2pf, torch; print("torch", torch.__version__, "library", dsv41_l2pf.status()["version"], dsv41_l2pf.__file__)'
    "${alone[@]}" venv/bin/dsv41-l2pf status --json
    "${alone[@]}" venv/bin/python -m pytest -q tests
  ) || status=1
  rm -rf "$folder"
done
exit "$status"
