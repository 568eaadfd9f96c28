#!/usr/bin/env bash
# Runs tests/engines inside the engines' own venvs, one engine after the other, with the library that is built here.
#   tools/engine_tests.sh [ENGINE...]   sglang and vllm unless named
# Environment:
#   L2PF_WHEEL            a wheel to test in place of the checkout
#   L2PF_ENGINE_FALLBACK  1: an engine that cannot be installed (less than 30 GiB free, no network, 15 minutes over) has
#                         its table of hooked functions checked against its wheels' sources instead, and says so
set -euo pipefail
cd "$(dirname "$0")/.."
engines=("$@")
[ "$#" -gt 0 ] || engines=(sglang vllm)
own_python="$(tools/venv.sh)"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

# What SGLang and vLLM find the plugin by is the metadata of an installed distribution.
if [ -n "${L2PF_WHEEL:-}" ]; then
  "$own_python" -m pip install --quiet --disable-pip-version-check --no-deps --target "$work/site" "$L2PF_WHEEL"
  path="$work/site"
else
  mkdir "$work/site"
  "$own_python" -c 'import sys; from setuptools.build_meta import prepare_metadata_for_build_wheel as prepare; prepare(sys.argv[1])' \
    "$work/site" >"$work/metadata.log" 2>&1 || { cat "$work/metadata.log" >&2; exit 1; }
  path="$work/site:$PWD"
fi

free_gib() { echo $(($(df --output=avail -k "${XDG_CACHE_HOME:-$HOME}" | tail -n 1) / 1048576)); }

# The engine's python on stdout; fails without one. A reason goes to stderr.
engine_python() {
  tools/engine_venv.sh "$1" --existing && return
  if [ "${L2PF_ENGINE_FALLBACK:-}" != 1 ]; then
    tools/engine_venv.sh "$1"
  elif [ "$(free_gib)" -lt 30 ]; then
    echo "engine_tests: $(free_gib) GiB free, 30 needed to install $1" >&2
    return 1
  else
    timeout 15m tools/engine_venv.sh "$1"
  fi
}

run_tests() { # ENGINE PYTHON
  echo "==> testing the hooks in $1 with $2"
  local pattern=(tests/engines/test_"$1"_*.py)
  [ "$1" = sglang ] && pattern+=(tests/engines/test_b12x_*.py)
  PYTHONPATH="$path" "$2" -W ignore -m pytest -W ignore -p no:cacheprovider "${pattern[@]}"
}

check_sources() { # ENGINE
  echo "==> ############################################################################"
  echo "==> $1 IS NOT INSTALLED HERE: only its table of hooked functions is checked,"
  echo "==> against the sources in its wheels. \`make test-engines\` runs the real tests."
  echo "==> ############################################################################"
  mapfile -t wheels < <(grep -E '^(sglang|b12x|vllm)==' "requirements-$1.txt")
  "$own_python" -m pip download --quiet --disable-pip-version-check --no-cache-dir --no-deps --only-binary=:all: \
    -d "$work/$1" "${wheels[@]}"
  "$own_python" - "$work/$1" "$work/sources" <<'PYTHON'
import pathlib, sys, zipfile
for wheel in pathlib.Path(sys.argv[1]).glob("*.whl"):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(sys.argv[2], [name for name in archive.namelist() if name.endswith(".py")])
PYTHON
  rm -rf "${work:?}/$1"
  L2PF_ENGINE_SOURCES="$work/sources" "$own_python" -m pytest -p no:cacheprovider tests/engines/test_sources.py -k "$1"
}

status=0
for engine in "${engines[@]}"; do
  if python="$(engine_python "$engine")"; then
    run_tests "$engine" "$python" || status=1
  elif [ "${L2PF_ENGINE_FALLBACK:-}" = 1 ]; then
    check_sources "$engine" || status=1
  else
    status=1
  fi
done
exit "$status"
