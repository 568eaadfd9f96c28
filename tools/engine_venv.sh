#!/usr/bin/env bash
# Makes (or reuses) the venv of one engine, `sglang` or `vllm`, and prints the path of its python on stdout; everything
# else goes to stderr. It holds third-party packages only, keyed by the hash of its requirements, so that clones share it.
#   tools/engine_venv.sh ENGINE            install when it is not there
#   tools/engine_venv.sh ENGINE --existing print the python when it is there, else fail without a word
set -euo pipefail
engine="${1:-}"
case "$engine" in
  sglang) needs_gib=16 ;;
  vllm) needs_gib=14 ;;
  *) echo "engine_venv: expected sglang or vllm, got '$engine'" >&2; exit 2 ;;
esac
requirements="$(cd "$(dirname "$0")/.." && pwd)/requirements-$engine.txt"
key="$(sha256sum "$requirements" | cut -c1-16)"
cache="${XDG_CACHE_HOME:-$HOME/.cache}/dsv41_l2pf"
venv="$cache/$key"
if [ "${2:-}" = --existing ]; then
  [ -f "$venv/.complete" ] || exit 1
  echo "$venv/bin/python"
  exit 0
fi
mkdir -p "$cache"
exec 9>"$cache/$key.lock"  # two clones may start at once
flock 9
if [ ! -f "$venv/.complete" ]; then
  rm -rf "$venv"  # a half-made one must not count as used disk
  free_gib=$(($(df --output=avail -k "$cache" | tail -n 1) / 1048576))
  if [ "$free_gib" -lt "$needs_gib" ]; then
    echo "engine_venv: $engine needs $needs_gib GiB free, $cache has $free_gib GiB: free some, or set XDG_CACHE_HOME to a larger disk" >&2
    exit 1
  fi
  echo "engine_venv: installing $(basename "$requirements") into $venv (about 7 minutes the first time)" >&2
  python3 -m venv "$venv" >&2 || {
    echo "engine_venv: python3 cannot make a venv: install Debian's python3-venv" >&2
    exit 1
  }
  # Without pip's cache: it would hold the same gigabytes a second time.
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir -r "$requirements" >&2 9>&- || {
    echo "engine_venv: pip could not install $(basename "$requirements"): its error is above" >&2
    exit 1
  }
  touch "$venv/.complete"
fi
echo "$venv/bin/python"
