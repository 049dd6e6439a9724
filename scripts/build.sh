#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Configures (when needed) and builds a preset, or some targets of it.
#
#   scripts/build.sh PRESET [JOBS [TARGET...]]
set -euo pipefail

cd "$(dirname "$0")/.."
# Another clone of the repository finds what this one compiled.
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
preset=$1
jobs=${2:-$(nproc)}
options=()
case $preset in
  fuzz | lint)
    # CI's version where there are several.
    if command -v clang++-14 >/dev/null; then
      options+=(-DCMAKE_C_COMPILER=clang-14 -DCMAKE_CXX_COMPILER=clang++-14)
    fi
    ;;
esac
# A tree that was configured elsewhere (a copied checkout) is made anew.
cache=build/$preset/CMakeCache.txt
if [ -e "$cache" ] && ! grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$PWD" "$cache"; then
  rm -rf "build/$preset"
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! cmake --preset "$preset" "${options[@]}" >"$log" 2>&1; then
  cat "$log" >&2
  exit 1
fi
grep -A 5 'CMake .*Warning' "$log" >&2 || true
if [ "$preset" = lint ]; then
  exit 0
fi
targets=()
if [ $# -gt 2 ]; then
  targets=(--target "${@:3}")
fi
cmake --build --preset "$preset" --parallel "$jobs" "${targets[@]}"
