#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs programs of the newest tarball of `make dist` in a root of Debian 11, whose glibc is 2.31 (needs root and a mirror of
# Debian 11; skipped without). The root has nothing but glibc and libgcc. Exit status 77: skipped.
#
#   scripts/try_floor.sh DIRECTORY
set -euo pipefail

cd "$(dirname "$0")/.."
tarball=$(find "$1" -maxdepth 1 -name 'gpushm-[0-9]*.tar.xz' -printf '%T@ %p\n' | sort -n | tail -n 1 | cut -d ' ' -f 2-)
if [ -z "$tarball" ]; then
  echo "try_floor: no tarball in $1 (make dist)" >&2
  exit 1
fi
skip() {
  echo "try_floor: skipped: $*"
  exit 77
}
[ "$(id -u)" = 0 ] || skip "not root"
[ "$(uname -m)" = x86_64 ] || skip "no Debian 11 for $(uname -m)"
root=$PWD/build/debian11
mkdir -p build
rc=0
scripts/foreign_packages.sh --release bullseye amd64 "$root" libc6 libgcc-s1 >build/debian11.log 2>&1 || rc=$?
if [ $rc != 0 ]; then
  tail -n 3 build/debian11.log
  skip "the packages of Debian 11 are not available"
fi
mkdir -p "$root"/{dev,proc,run,sys,tmp,gpushm}

# In a mount namespace of its own: nothing stays mounted.
inside() {
  # shellcheck disable=SC2016
  unshare --mount --propagation private bash -euc '
    root=$1
    for name in dev proc sys; do mount --rbind "/$name" "$root/$name"; done
    mount -t tmpfs tmpfs "$root/run"
    mount --bind "$2" "$root/gpushm"
    mount --bind "$3" "$root/tmp"
    exec env -i PATH=/gpushm/bin HOME=/tmp timeout 120 chroot "$root" "${@:4}"' inside "$root" "$tree" "$scratch/tmp" "$@"
}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -m 1777 "$scratch/tmp"
tar -C "$scratch" -xJf "$tarball"
tree=$(echo "$scratch"/gpushm-*)
try() {
  local start=$SECONDS
  echo "try_floor: ${1##*/} ${*:2}"
  if ! inside "$@" >"$scratch/log" 2>&1; then
    cat "$scratch/log" >&2
    echo "try_floor: failed: ${1##*/} ${*:2}" >&2
    exit 1
  fi
  echo "try_floor: ok ($((SECONDS - start)) s)"
}

inside /lib64/ld-linux-x86-64.so.2 --list /gpushm/lib/libgpushm.so.1 >"$scratch/log"
grep -q 'libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6' "$scratch/log" || { cat "$scratch/log" >&2; exit 1; }
try /gpushm/bin/gpushm --version
try /gpushm/bin/gpushm demo --device host --size 8MiB
# Broker and client of the shared libraries.
inside /gpushm/bin/example_exchange_file export /tmp/ticket >"$scratch/exporter" 2>&1 &
try /gpushm/bin/example_exchange_file import /tmp/ticket
wait $! || { cat "$scratch/exporter" >&2; exit 1; }
try /gpushm/bin/gpushm_base_test --gtest_brief=1
try /gpushm/bin/gpushm_client_test --gtest_brief=1
echo "try_floor: runs with glibc $(readlink "$root/lib/x86_64-linux-gnu/libc.so.6" | sed 's/libc-\(.*\)\.so/\1/')"
