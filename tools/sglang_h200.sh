#!/usr/bin/env bash
# sglang_h200.sh install | run: a real SGLang 0.5.16 on one GPU, without a network (make sglang-h200).
#   install  installs the folders of tools/sglang_kit.sh that were brought here; once for each
#   run      starts it off, on, tuned while serving, off again, three times in turns for each delay, and prints the
#            ratios of decode steps
# Environment: L2PF_SITE (where SGLang is installed), OUT (results), STARTS (3), DELAYS ("5 15"), DEADLINE_S (no turn
# begins after so many seconds; none by default), SGLANG_DECODE_ARGS (more words for benchmarks.sglang_decode).
set -euo pipefail
cd "$(dirname "$0")/.."
site="${L2PF_SITE:-/tmp/l2pf_sglang}"
out="${OUT:-$(mktemp -d)}"

install() {
  mkdir -p "$site"
  for folder in .sgkit1 .sgkit2 .sgkit3; do
    compgen -G "$folder/*.whl" >/dev/null || continue
    python3 -m pip install --quiet --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$site" "$folder"/*.whl
  done
  [ ! -f .sgkit1/sgl_kernel.tar.xz ] || tar xJf .sgkit1/sgl_kernel.tar.xz -C "$site"
}

start() { # NAME DELAY PREFETCH TUNE
  local begin=$SECONDS
  echo "==> sglang: $1, peers answer after $2 us"
  # shellcheck disable=SC2086  # SGLANG_DECODE_ARGS is a list of words
  env DSV41_L2_PREFETCH="$3" DSV41_L2_PREFETCH_TUNE="$4" HF_HUB_OFFLINE=1 PYTHONPATH="$site:$PWD" \
    python3 -m benchmarks.sglang_decode --delay-us "$2" ${SGLANG_DECODE_ARGS:-} \
    >"$out/last_start.log" 2>&1 || { tail -n 40 "$out/last_start.log"; return 1; }
  grep -E 'dsv41_l2pf' "$out/last_start.log" | grep -v '^{' | head -n 8 || true
  grep '^{' "$out/last_start.log" | tail -n 1 | sed "s/^{/{\"start\": \"$1\", /" >>"$out/sglang.jsonl"
  echo "    $((SECONDS - begin)) s"
}

run() {
  # SGLang finds the plugin by an installed distribution's metadata. Made in a folder of its own: setuptools takes no
  # folder that has other distributions.
  local metadata
  metadata="$(mktemp -d)"
  python3 -c 'import sys; from setuptools.build_meta import prepare_metadata_for_build_wheel as prepare; prepare(sys.argv[1])' \
    "$metadata" >"$out/metadata.log" 2>&1 || { cat "$out/metadata.log" >&2; exit 1; }
  cp -r "$metadata"/*.dist-info "$site"
  rm -rf "$metadata"
  local delay turn begin=$SECONDS
  for delay in ${DELAYS:-5 15}; do
    for turn in $(seq "${STARTS:-3}"); do
      if [ $((SECONDS - begin)) -gt "${DEADLINE_S:-999999}" ]; then
        echo "==> sglang: turn $turn of $delay us left out: $((SECONDS - begin)) s have passed"
        continue
      fi
      start off "$delay" 0 0
      start on "$delay" 1 0
      start "tuned while serving" "$delay" 1 1
      start "off again" "$delay" 0 0
    done
  done
  python3 -m benchmarks.sglang_ratios "$out/sglang.jsonl"
}

case "${1:-}" in
  install) install ;;
  run) run ;;
  *)
    echo "sglang_h200.sh: expected install or run, got '${1:-}'" >&2
    exit 2
    ;;
esac
