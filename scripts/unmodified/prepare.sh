#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prepares on a machine with a network and nvcc what run.sh needs on one that has a GPU but no network.
#
#   scripts/unmodified/prepare.sh [--tarball FILE] [--engine MAKE_SITE] [DIR]
#
# DIR        programs, runc and UCX (17 MiB); default .carry/unmodified
# --tarball  also DIR/dist: gpushm and the libraries of a tarball of `make dist`, the product or the test kit
# --engine   also DIR/engine (48 MiB): vLLM 0.24, packed by the script MAKE_SITE DIR
#
# Needs nvcc 13 with its runtime, g++, python3 with pip, runc, and the default seccomp profile of
# golang-github-containers-common.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
engine=""
tarball=""
while [ $# -gt 1 ]; do
  case $1 in
    --engine) engine=$2 ;;
    --tarball) tarball=$2 ;;
    *) break ;;
  esac
  shift 2
done
mkdir -p "${1:-$root/.carry/unmodified}"
to=$(cd "${1:-$root/.carry/unmodified}" && pwd)
cuda=${CUDA_HOME:-/usr/local/cuda}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$to"/{bin,lib,runc,ucx}

# Programs. PTX of sm_75 beside code for sm_90, so that they run on other GPUs too.
targets=(-gencode "arch=compute_90,code=sm_90" -gencode "arch=compute_75,code=compute_75")
"$cuda/bin/nvcc" -O2 -std=c++17 "${targets[@]}" -o "$to/bin/runtime" "$here/runtime.cu"
"$cuda/bin/nvcc" -O2 -std=c++17 "${targets[@]}" -cudart shared -o "$to/bin/runtime_shared" "$here/runtime.cu"
for folder in lib lib64; do
  if [ -e "$cuda/$folder/libcudart.so.13" ]; then
    cp -fL "$cuda/$folder/libcudart.so.13" "$to/lib/"
  fi
done
for program in three cost; do
  g++ -O2 -std=c++17 -Wall -Wextra -I"$cuda/include" -o "$to/bin/$program" "$here/$program.cpp" \
    -L"$cuda/lib/stubs" -L"$cuda/lib64/stubs" -lcuda -ldl -lrt
done

# UCX as released on PyPI, and the program over UCP.
python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --python-version 3.12 \
  --platform manylinux_2_28_x86_64 -d "$scratch" libucx-cu13==1.22.0
python3 -m zipfile -e "$scratch"/libucx_cu13-*.whl "$scratch/wheel"
wheel=$scratch/wheel/libucx
mkdir -p "$to/ucx/lib/ucx"
cp "$wheel"/lib/lib{ucp,uct,ucs,ucm}.so.0 "$to/ucx/lib/"
cp "$wheel"/lib/ucx/lib{uct_cuda,ucm_cuda,uct_cma}.so.0 "$to/ucx/lib/ucx/"
cp -r "$scratch"/wheel/libucx_cu13.libs "$to/ucx/"
for library in "$to"/ucx/lib/ucx/*.so.0; do
  ln -sf "$(basename "$library")" "${library%.0}"  # UCX opens its modules by this name
done
find "$to/ucx" -type f -name '*.so*' -exec strip --strip-unneeded {} +
g++ -O2 -std=c++17 -Wall -Wextra -I"$cuda/include" -I"$wheel/include" -o "$to/bin/ucx_get" "$here/ucx_get.cpp" \
  -L"$wheel/lib" -Wl,-rpath-link,"$wheel/lib:$scratch/wheel/libucx_cu13.libs" -Wl,--allow-shlib-undefined \
  -l:libucp.so.0 -l:libucs.so.0 -L"$cuda/lib/stubs" -L"$cuda/lib64/stubs" -lcuda

# The runtime and the profile that container engines apply by default.
cp -L "$(command -v runc)" "$to/runc/runc"
cp -L "$(ldd "$to/runc/runc" | awk '$1 == "libseccomp.so.2" {print $3}')" "$to/runc/libseccomp.so.2"
python3 "$here/seccomp_profile.py" /usr/share/containers/seccomp.json >"$to/seccomp.json"

if [ -n "$tarball" ]; then
  rm -rf "$to/dist"
  mkdir -p "$to/dist"
  tar -C "$to/dist" --strip-components=1 -xJf "$tarball" --exclude '*/lib/fake' --exclude '*/lib/gpushm/agent' \
    --wildcards '*/bin/gpushm' '*/lib/*.so*'
fi
if [ -n "$engine" ]; then
  mkdir -p "$to/engine"
  bash "$engine" "$to/engine"
fi
du -sh "$to"
