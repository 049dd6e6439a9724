#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Configures a preset if necessary, and builds it or some of its targets.
#
#   scripts/build.sh PRESET [JOBS [TARGET...]]
#   scripts/build.sh --dry-run PRESET TARGET...     configures, and fails if a target is unknown
set -euo pipefail

cd "$(dirname "$0")/.."
# Clones of the repository share compiled objects.
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
# Required by GpushmPrecompiled.cmake.
export CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_PCH_EXTSUM=1
# Room for CI's trees (dev, asan, tsan, release) at several states of the sources.
export CCACHE_MAXSIZE=${CCACHE_MAXSIZE:-12G}
dry_run=()
if [ "$1" = --dry-run ]; then
  dry_run=(-- -n)
  set -- "$2" 1 "${@:3}"
fi
preset=$1
jobs=${2:-$(nproc)}
options=()
case $preset in
  demo | dev | asan | tsan | fuzz | lint)
    # CI's version, if several are installed.
    if command -v clang++-14 >/dev/null; then
      options+=(-DCMAKE_C_COMPILER=clang-14 -DCMAKE_CXX_COMPILER=clang++-14)
    fi
    ;;
esac
# Recreates a tree that was configured elsewhere (a copied checkout) or for another compiler, with which CMake would drop
# the preset's variables.
case $preset in
  bench | dist | packages) tree=build/release ;;
  *) tree=build/$preset ;;
esac
configured_as() { # LINE of CMakeCache.txt, as extended regular expression
  grep -qxE "$1" "$tree/CMakeCache.txt"
}
if [ -e "$tree/CMakeCache.txt" ]; then
  if ! configured_as "CMAKE_HOME_DIRECTORY:INTERNAL=$PWD" ||
     { [[ ${options[*]} == *clang++-14* ]] && ! configured_as "CMAKE_CXX_COMPILER:[A-Z]+=(.*/)?clang\+\+-14"; }; then
    rm -rf "$tree"
  fi
fi
# A new tree is compiled whole, faster if several sources are compiled as one. A tree keeps its kind until UNITY is given.
if [ "$preset" = dev ] && { [ -n "${UNITY:-}" ] || [ ! -e "$tree/CMakeCache.txt" ]; }; then
  options+=("-DGPUSHM_UNITY=${UNITY:-ON}")
fi
if [ "$preset" = aarch64 ]; then  # sources compiled by themselves, as in development: without missing includes
  mkdir -p build
  since=$(scripts/lint_base.sh)
  scripts/tidy_files.py --sources ${since:+"$since"} >build/aarch64-separate.txt.new
  cmp -s build/aarch64-separate.txt.new build/aarch64-separate.txt ||
    mv build/aarch64-separate.txt.new build/aarch64-separate.txt
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
if [ "$tree" = "build/$preset" ]; then
  # Files of targets that moved or ended: a test that still finds one would fail in a new tree only.
  ninja -C "$tree" -t cleandead >/dev/null
fi
targets=()
if [ $# -gt 2 ]; then
  targets=(--target "${@:3}")
fi
build() {
  cmake --build --preset "$preset" --parallel "$jobs" "${targets[@]}" "$@"
}
if grep -qE '^GPUSHM_UNITY:[A-Z]+=ON$' "$tree/CMakeCache.txt" && [ ${#dry_run[@]} -eq 0 ]; then
  apart=
  until build -- -k 0 | tee "$log"; do
    # Sources that cannot be compiled together cost time and should be fixed, but are not a failure.
    more=$(sed -nE 's/^FAILED: .*CMakeFiles\/([^/]+)\.dir\/.*unity\/.*/\1/p' "$log" | sort -u | paste -sd ';')
    if [ -z "$more" ]; then
      exit 1
    fi
    echo "build: WARNING: these targets do not compile as unity builds (docs/ci.md): $more" >&2
    apart=${apart:+$apart;}$more
    cmake --preset "$preset" "${options[@]}" "-DGPUSHM_UNITY_APART=$apart" >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
  done
else
  build "${dry_run[@]}"
fi
echo "build: $preset: $SECONDS s"
