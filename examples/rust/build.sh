#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds share.rs with rustc (1.63 or newer) and bindgen, without cargo or crates. Each build generates the declarations from
# the C header.
#
#   build.sh OUTPUT_DIRECTORY [INCLUDE_DIRECTORY LIBRARY_DIRECTORY]      default: the directories from pkg-config
#
# RUSTC: path of rustc; RUSTFLAGS: additional options.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
out=$1
rustc=${RUSTC:-rustc}
read -ra flags <<<"${RUSTFLAGS:-}"
include=${2:-$(pkg-config --variable=includedir gpushm)}
libraries=${3:-$(pkg-config --variable=libdir gpushm)}
mkdir -p "$out"

bindgen "$include/gpushm/gpushm.h" -o "$out/gpushm_sys.rs" --default-enum-style newtype \
  --allowlist-function 'gpushm_.*' --allowlist-type 'gpushm_.*' --allowlist-var 'GPUSHM_.*' -- -I "$include" -std=c11
common=(--edition 2021 -C debuginfo=0)
# Generated code violates Rust's naming lints.
"$rustc" "${common[@]}" --cap-lints allow --crate-type rlib --crate-name gpushm_sys "$out/gpushm_sys.rs" \
  -o "$out/libgpushm_sys.rlib"
"$rustc" "${common[@]}" "${flags[@]}" "$here/share.rs" --extern "gpushm_sys=$out/libgpushm_sys.rlib" \
  -L "native=$libraries" -l dylib=gpushm -C link-arg="-Wl,-rpath,$libraries" -o "$out/share"
