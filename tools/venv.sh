#!/usr/bin/env bash
# Makes (or reuses) the development venv and prints the path of its python on stdout; everything else goes to stderr.
# The venv holds third-party packages only, keyed by the hash of requirements.txt, so that clones share it.
set -euo pipefail
requirements="$(cd "$(dirname "$0")/.." && pwd)/${1:-requirements.txt}"
key="$(sha256sum "$requirements" | cut -c1-16)"
cache="${XDG_CACHE_HOME:-$HOME/.cache}/dsv41_l2pf"
venv="$cache/$key"
mkdir -p "$cache"
exec 9>"$cache/$key.lock"  # two clones may start at once
flock 9
if [ ! -f "$venv/.complete" ]; then
  free_gib=$(($(df --output=avail -k "$cache" | tail -n 1) / 1048576))
  if [ "$free_gib" -lt 12 ]; then
    echo "venv: needs 12 GiB free for torch and its CUDA libraries, $cache has $free_gib GiB" >&2
    exit 1
  fi
  echo "venv: installing $(basename "$requirements") into $venv (torch is large: a few minutes the first time)" >&2
  rm -rf "$venv"
  python3 -m venv "$venv" >&2 || {
    echo "venv: python3 cannot make a venv: install Debian's python3-venv" >&2
    exit 1
  }
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r "$requirements" >&2 9>&- || {
    echo "venv: pip could not install $(basename "$requirements"): its error is above" >&2
    exit 1
  }
  touch "$venv/.complete"
fi
echo "$venv/bin/python"
