#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the libraries of a commit of this repository and its tests/frozen/peer.c, as a user of that version would, into
# DIRECTORY/COMMIT. Does nothing if that is complete.
#
#   build.sh SOURCES COMMIT_FILE DIRECTORY
#
# Exits with 77 if the history is missing (an archive, a shallow clone), or no version is frozen.
set -euo pipefail

sources=$1
commit=$(grep -v '^#' "$2" || true)
if [ -z "$commit" ]; then
  echo "frozen: skipped: no version is frozen"
  exit 77
fi
mkdir -p "$3"
tree=$(realpath "$3")/$commit
if ! git -C "$sources" cat-file -e "$commit^{commit}" 2>/dev/null; then
  echo "frozen: skipped: commit $commit is not in the history of $sources"
  exit 77
fi
if ! [ -e "$tree/complete" ]; then
  rm -rf "$tree"
  mkdir -p "$tree/source"
  git -C "$sources" archive "$commit" | tar -x -C "$tree/source"
  export CCACHE_BASEDIR=$tree/source CCACHE_NOHASHDIR=1
  # With clang and precompiled headers it takes a third of the CPU time that g++ takes.
  options=()
  targets=(gpushm_shared gpushm_broker_shared)
  for clang in clang++-14 clang++; do
    if command -v "$clang" >/dev/null; then
      options=("-DCMAKE_C_COMPILER=${clang/++/}" "-DCMAKE_CXX_COMPILER=$clang" -DGPUSHM_PRECOMPILED=ON)
      targets=(gpushm_precompiled "${targets[@]}")
      break
    fi
  done
  cmake -S "$tree/source" -B "$tree/build" -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG= -DGPUSHM_BUILD_TESTS=OFF \
        -DGPUSHM_BUILD_BENCH=OFF -DGPUSHM_BUILD_AGENT=OFF -DGPUSHM_UNITY=ON -DGPUSHM_WERROR=OFF "${options[@]}" \
        >"$tree/log" 2>&1 || { cat "$tree/log" >&2; exit 1; }
  for target in "${targets[@]}"; do  # in this order: that version does not declare that objects need the precompiled headers
    cmake --build "$tree/build" --parallel "$(nproc)" --target "$target" >"$tree/log" 2>&1 ||
      { tail -50 "$tree/log" >&2; exit 1; }
  done
  mkdir "$tree/lib"
  cp -a "$tree/build"/libgpushm*.so* "$tree/lib"
  cc -std=c11 -I"$tree/source/include" "$tree/source/tests/frozen/peer.c" -o "$tree/peer" -L"$tree/lib" -lgpushm-broker -lgpushm
  rm -rf "$tree/build"
  touch "$tree/complete"
fi
echo "frozen: $commit, version $(LD_LIBRARY_PATH=$tree/lib "$tree/peer" version)"
