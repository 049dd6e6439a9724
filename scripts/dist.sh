#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Packs a finished build into a tarball that needs only glibc (and its companion libgcc_s.so.1) on the target machine, and checks it.
#
#   scripts/dist.sh BUILD_DIR [OUTPUT_DIR]        default output: build/dist
#
# bin/    gpushm, its selftest, test and benchmark programs
# lib/    every shared library they need, except glibc's own and the GPU driver's; lib/fake/ has the stand-ins. Those of the
#         distribution, for gpushmd and the tests that use gRPC, need the distribution's glibc; all else runs with glibc 2.28
# share/  documents, examples, recorded machines for the tests, sources that compare gpushm's declarations with a cuda.h
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
build=$(cd "$1" && pwd)
output=${2:-$root/build/dist}
version=$(sed -n 's/^CMAKE_PROJECT_VERSION:STATIC=//p' "$build/CMakeCache.txt")
name=gpushm-$version-linux-$(uname -m)
mkdir -p "$output"
output=$(cd "$output" && pwd)
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
tree=$stage/$name
mkdir -p "$tree/bin" "$tree/lib" "$tree/share/abi"

cmake --install "$build" --component dist --prefix "$tree" >/dev/null

# A static position-independent program has a dynamic section, and needs no library.
is_dynamic() { [[ $(readelf -dW "$1" 2>/dev/null) == *"(NEEDED)"* ]]; }

# glibc's own libraries belong to the machine, and so does the driver. libgcc_s.so.1 is everywhere where glibc is; this machine's may need
# a newer glibc than the libraries.
is_foreign() {
  case $1 in
    ld-linux-*|libc.so.*|libm.so.*|libdl.so.*|libpthread.so.*|librt.so.*|libresolv.so.*|libutil.so.*) return 0 ;;
    libanl.so.*|libnss_*|libgcc_s.so.1|libcuda.so*|libnvidia-*) return 0 ;;
    *) return 1 ;;
  esac
}

# `ldd` also lists indirect dependencies.
find "$tree/bin" "$tree/lib" -type f -print0 | while IFS= read -r -d '' file; do
  if is_dynamic "$file"; then
    LD_LIBRARY_PATH=$tree/lib ldd "$file" | awk '$2 == "=>" && $3 ~ /^\// {print $1, $3} $0 ~ /not found/ {print $1, "missing"}'
  fi
done | sort -u >"$stage/needed"
while read -r soname path; do
  if is_foreign "$soname" || [ -e "$tree/lib/$soname" ]; then
    continue
  fi
  if [ "$path" = missing ]; then
    echo "dist: $soname is required but was not found" >&2
    exit 1
  fi
  cp -L "$path" "$tree/lib/$soname"
done <"$stage/needed"

# Strips the copies and limits their search paths to the tree.
find "$tree/bin" "$tree/lib" -type f -print0 | while IFS= read -r -d '' file; do
  is_dynamic "$file" || continue
  chmod u+w "$file"
  strip --strip-unneeded "$file"
  case ${file#"$tree"/} in
    bin/*) patchelf --set-rpath "\$ORIGIN/../lib" "$file" ;;
    # They find each other by their own folder and need nothing else of the tarball. (patchelf 0.14 breaks libgpushm-ipc.so.)
    lib/gpushm/*) ;;
    lib/fake/*) patchelf --set-rpath "\$ORIGIN/.." "$file" ;;
    lib/*) patchelf --set-rpath "\$ORIGIN" "$file" ;;
  esac
done

for folder in docs examples; do
  if [ -d "$root/$folder" ]; then
    cp -r "$root/$folder" "$tree/share/"
  fi
done
mkdir -p "$tree/share/machines"
cp "$root"/tests/data/machines/*.json "$tree/share/machines/"
for file in README.md LICENSE CHANGELOG.md; do
  if [ -e "$root/$file" ]; then
    cp "$root/$file" "$tree/"
  fi
done
# Compiles with `c++ -std=c++20 -Ishare/abi -Ishare/abi/include -I<cuda>/include share/abi/abi_check.cpp`.
cp -r "$root/include" "$tree/share/abi/include"
find "$root/src/driver" "$root/testing" "$root/tests" -type f \
     \( -name cuda_abi.hpp -o -name nvml_abi.hpp -o -name 'abi_check*.cpp' \) -print0 |
  while IFS= read -r -d '' file; do
    case $file in
      "$root"/src/driver/*.hpp) mkdir -p "$tree/share/abi/driver" && cp "$file" "$tree/share/abi/driver/" ;;
      *.cpp) cp "$file" "$tree/share/abi/" ;;
    esac
  done

# The programs share much, megabytes apart: a window over several of them halves the size.
XZ_OPT="--lzma2=preset=2,dict=64MiB -T2" tar -C "$stage" --sort=name --owner=0 --group=0 --numeric-owner -cJf "$output/$name.tar.xz.part" "$name"
rc=0
"$root/scripts/check_dist.sh" "$output/$name.tar.xz.part" || rc=$?
if [ $rc != 0 ] && [ $rc != 77 ]; then
  exit $rc
fi
mv "$output/$name.tar.xz.part" "$output/$name.tar.xz"
size_mib=$(( ($(stat -c %s "$output/$name.tar.xz") + 1048575) / 1048576 ))
echo "dist: $output/$name.tar.xz, $size_mib MiB"

# The GStreamer plug-in, with the library that it loads. GStreamer and the C++ runtime are the machine's.
plugin=$stage/gpushm-gstreamer-$version-linux-$(uname -m)
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
