#!/usr/bin/env bash
# check_tools.sh [build|test|gpu]: one line on stderr for each tool that is missing, with its Debian package; exit 1 if any.
# With --packages it prints only the package names, on stdout, and exits 0.
set -uo pipefail
packages_only=0
if [ "${1:-}" = --packages ]; then
  packages_only=1
  shift
fi
for_what="${1:-build}"
missing=0

# miss TOOL PACKAGE [REASON]
miss() {
  missing=1
  if [ "$packages_only" = 1 ]; then
    echo "$2"
  else
    echo "missing: $1${3:+ ($3)}: install Debian's $2 (apt-get install $2)" >&2
  fi
}
have() { command -v "$1" >/dev/null 2>&1; }
# old PROGRAM_VERSION MINIMUM
old() { [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" != "$2" ]; }

if ! have python3; then
  miss python3 python3
elif ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
  miss python3 python3 "expected at least 3.10, got $(python3 -V)"
elif [ "$for_what" != gpu ] && ! python3 -c 'import venv, ensurepip' 2>/dev/null; then
  miss "python3 -m venv" python3-venv
fi

if ! have g++; then
  miss g++ g++
elif old "$(g++ -dumpfullversion)" 11; then
  miss g++ g++ "expected at least 11 for C++20, got $(g++ -dumpfullversion)"
fi

if ! have cmake; then
  miss cmake cmake
else
  version="$(cmake --version | sed -n '1s/[^0-9]*//p')"
  old "$version" 3.25 && miss cmake cmake "expected at least 3.25, got $version"
fi

have make || have ninja || miss "make or ninja" make

if [ "$for_what" != build ]; then
  { have nm && have readelf; } || miss "nm and readelf" binutils
  if [ -z "${L2PF_GTEST_SOURCE:-}" ] && have g++ &&
    ! echo '#include <gtest/gtest.h>' | g++ -std=c++20 -E -x c++ - >/dev/null 2>&1; then
    miss "GoogleTest's headers" libgtest-dev "or set L2PF_GTEST_SOURCE to its source tree"
  fi
fi
[ "$packages_only" = 1 ] || exit "$missing"
