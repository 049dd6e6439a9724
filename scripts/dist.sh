#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Packs a finished build into two tarballs that need only glibc (and its companion libgcc_s.so.1) on the target machine, and checks
# them.
#
#   scripts/dist.sh BUILD_DIR [OUTPUT_DIR]        default output: build/dist
#
# gpushm-VERSION-linux-ARCH.tar.xz, the product: what `make install` installs, with the paths of /usr/local in the units.
#   bin/    gpushm, the programs of a node, gpushmd
#   lib/    libgpushm, libgpushm-broker, their CMake and pkg-config files, units, lib/gpushm/ipc. lib/gpushm/agent has the
#           distribution's libraries, for gpushmd, which needs the distribution's glibc; all else runs with glibc 2.28
#   include/, share/    headers; manual pages, completions, licence and documents
#
# gpushm-testkit-VERSION-linux-ARCH.tar.xz, to test a machine:
#   bin/    gpushm-selftest, the test and benchmark programs, and the programs that they start
#   lib/    every shared library they need, except glibc's own and the GPU driver's; lib/fake/ has the stand-ins
#   share/  documents, examples, recorded machines for the tests, sources that compare gpushm's declarations with a cuda.h
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
build=$(cd "$1" && pwd)
output=${2:-$root/build/dist}
version=$(sed -n 's/^CMAKE_PROJECT_VERSION:STATIC=//p' "$build/CMakeCache.txt")
suffix=$version-linux-$(uname -m)
mkdir -p "$output"
output=$(cd "$output" && pwd)
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
product=$stage/gpushm-$suffix
kit=$stage/gpushm-testkit-$suffix

# ---- the product ----
DESTDIR=$stage/installed cmake --install "$build" --strip --prefix /usr/local >/dev/null
mv "$stage/installed/usr/local" "$product"
if [ -e "$product/bin/gpushmd" ]; then
  "$root/scripts/bundle.sh" "$product" lib/gpushm/agent bin/gpushmd
fi

# ---- the test kit ----
mkdir -p "$kit/bin" "$kit/lib" "$kit/share/abi"
cmake --install "$build" --component dist --prefix "$kit" >/dev/null
# The libraries in lib/gpushm find each other by their own folder. (patchelf 0.14 breaks libgpushm-ipc.so.)
strip --strip-unneeded "$kit"/lib/gpushm/ipc/*
mapfile -t files < <(cd "$kit" && find bin lib -type f ! -path 'lib/gpushm/*')
"$root/scripts/bundle.sh" "$kit" lib "${files[@]}"
for folder in docs examples; do
  cp -r "$root/$folder" "$kit/share/"
done
mkdir -p "$kit/share/machines"
cp "$root"/tests/data/machines/*.json "$kit/share/machines/"
cp "$root"/{README.md,LICENSE,CHANGELOG.md} "$kit/"
# Compiles with `c++ -std=c++20 -Ishare/abi -Ishare/abi/include -I<cuda>/include share/abi/abi_check.cpp`.
cp -r "$root/include" "$kit/share/abi/include"
find "$root/src/gpu/driver" "$root/tests" -type f \
     \( -name cuda_abi.hpp -o -name nvml_abi.hpp -o -name 'abi_check*.cpp' \) -print0 |
  while IFS= read -r -d '' file; do
    case $file in
      "$root"/src/gpu/driver/*.hpp) mkdir -p "$kit/share/abi/gpu/driver" && cp "$file" "$kit/share/abi/gpu/driver/" ;;
      *.cpp) cp "$file" "$kit/share/abi/" ;;
    esac
  done

# Packs a tree and checks the tarball, which has its name only then.
pack() { # TREE
  local file=$output/${1##*/}.tar.xz rc=0
  # The programs share much, megabytes apart: a window over several of them halves the size.
  XZ_OPT="--lzma2=preset=2,dict=64MiB -T2" tar -C "$stage" --sort=name --owner=0 --group=0 --numeric-owner -cJf "$file.part" "${1##*/}"
  "$root/scripts/check_dist.sh" "$file.part" || rc=$?
  if [ $rc != 0 ] && [ $rc != 77 ]; then
    exit $rc
  fi
  mv "$file.part" "$file"
  echo "dist: $file, $(( ($(stat -c %s "$file") + 1048575) / 1048576 )) MiB"
}
pack "$product"
pack "$kit"

# The GStreamer plug-in, with the library that it loads. GStreamer and the C++ runtime are the machine's.
plugin=$stage/gpushm-gstreamer-$suffix
cmake --install "$build" --component gstreamer --strip --prefix "$plugin" >/dev/null
built=$(find "$plugin" -name libgstgpushm.so 2>/dev/null || true)
if [ -n "$built" ]; then
  mkdir -p "$plugin/gstreamer-1.0"
  mv "$built" "$plugin/gstreamer-1.0/"
  rm -rf "${plugin:?}/lib"
  cp -L "$build/libgpushm.so.1" "$plugin/"
  strip --strip-unneeded "$plugin/libgpushm.so.1"
  cp "$root/LICENSE" "$root/docs/gstreamer.md" "$plugin/"
  XZ_OPT=-2 tar -C "$stage" --sort=name --owner=0 --group=0 --numeric-owner -cJf "$output/$(basename "$plugin").tar.xz" \
    "$(basename "$plugin")"
  echo "dist: $output/$(basename "$plugin").tar.xz"
fi
