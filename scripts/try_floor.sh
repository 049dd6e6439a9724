#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs programs of the newest tarballs of `make dist`, the product and the test kit, in a root of Debian 11, whose glibc is 2.31
# (needs root and a mirror of Debian 11; skipped without). The root has nothing but glibc and libgcc. Exit status 77: skipped.
#
#   scripts/try_floor.sh DIRECTORY
set -euo pipefail

cd "$(dirname "$0")/.."
newest() { # NAME
  find "$directory" -maxdepth 1 -name "$1-[0-9]*.tar.xz" -printf '%T@ %p\n' | sort -n | tail -n 1 | cut -d ' ' -f 2-
}
directory=$1
tarball=$(newest gpushm)
kit=$(newest gpushm-testkit)
if [ -z "$tarball" ] || [ -z "$kit" ]; then
  echo "try_floor: no tarballs in $1 (make dist)" >&2
  exit 1
fi
skip() {
  echo "try_floor: skipped: $*"
  exit 77
}
[ "$(id -u)" = 0 ] || skip "not root"
[ "$(uname -m)" = x86_64 ] || skip "no Debian 11 for $(uname -m)"
unshare --mount true 2>/dev/null || skip "no mount namespaces"
root=$PWD/build/debian11
mkdir -p build
rc=0
scripts/foreign_packages.sh --release bullseye amd64 "$root" libc6 libgcc-s1 >build/debian11.log 2>&1 || rc=$?
if [ $rc != 0 ]; then
  tail -n 3 build/debian11.log
  skip "the packages of Debian 11 are not available"
fi
mkdir -p "$root"/{dev,proc,run,sys,tmp,gpushm,kit}

scratch=$(mktemp -d)
keeper=
finish() {
  if [ -n "$keeper" ]; then
    kill "$keeper" 2>/dev/null || true
    wait "$keeper" || true
  fi
  rm -rf "$scratch"
}
trap finish EXIT
chmod 755 "$scratch"
mkdir -m 1777 "$scratch/tmp" "$scratch/run"
tree=$scratch/gpushm
mkdir "$tree" "$scratch/kit"
tar -C "$tree" --strip-components=1 -xJf "$tarball"
tar -C "$scratch/kit" --strip-components=1 -xJf "$kit"

# Becomes a program in the root, in a mount namespace of its own: nothing stays mounted.
enter() { # UID PROGRAM ARGUMENT...
  # shellcheck disable=SC2016
  exec unshare --mount --propagation private bash -euc '
    root=$1
    for name in dev proc sys; do mount --rbind "/$name" "$root/$name"; done
    for name in run tmp; do mount --bind "$3/$name" "$root/$name"; done
    mount --bind "$2" "$root/gpushm"
    mount --bind "$3/kit" "$root/kit"
    exec env -i PATH=/gpushm/bin HOME=/tmp GPUSHM_SOCKET=/run/gpushm/d/old/socket "$(command -v chroot)" --userspec="$4:$4" "$root" "${@:5}"
    ' enter "$root" "$tree" "$scratch" "$@"
}
inside() { # PROGRAM ARGUMENT...
  (enter 0 "$@") &
  local pid=$! deadline=$((SECONDS + 120))
  while kill -0 "$pid" 2>/dev/null; do
    if [ $SECONDS -ge $deadline ]; then
      kill -KILL "$pid"
      echo "try_floor: not finished within 120 s" >&2
    fi
    sleep 0.05
  done
  wait "$pid"
}
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

try /lib64/ld-linux-x86-64.so.2 --list /gpushm/lib/libgpushm.so.1
grep -q 'libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6' "$scratch/log" || { cat "$scratch/log" >&2; exit 1; }
# Each library, with all its symbols: they are linked with `-z now`.
for library in "$tree"/lib/libgpushm*.so.1; do
  try /lib64/ld-linux-x86-64.so.2 --preload "/gpushm/lib/${library##*/}" /gpushm/bin/gpushm --version
done
try /gpushm/bin/gpushm --version
try /gpushm/bin/gpushm demo --device host --size 8MiB

# Broker and client of the shared libraries.
(enter 0 /kit/bin/example_exchange_file export /tmp/ticket >"$scratch/exporter" 2>&1) &
exporter=$!
try /kit/bin/example_exchange_file import /tmp/ticket
wait $exporter || { cat "$scratch/exporter" >&2; exit 1; }

# The node's brokers, which the kernel kills if they use a system call that they do not expect; replaced once.
mkdir -m 755 "$scratch/run/gpushm"
mkdir -m 700 "$scratch/run/keeper"
chown 64000:64000 "$scratch/run/gpushm" "$scratch/run/keeper"
(enter 64000 /gpushm/bin/gpushm-keeper --socket /run/keeper/notify -- \
   /gpushm/bin/gpushm-brokerd --run-dir /run/gpushm --domain old --forbidden-call kill >"$scratch/brokers" 2>&1) &
keeper=$!
wait_for() { # COMMAND...
  local deadline=$((SECONDS + 30))
  until "$@"; do
    if [ $SECONDS -ge $deadline ]; then
      cat "$scratch/brokers" >&2
      echo "try_floor: not within 30 s: $*" >&2
      exit 1
    fi
    sleep 0.05
  done
}
wait_for test -e "$scratch/run/gpushm/d/old/socket"
try /gpushm/bin/gpushm create w/old --size 1MiB --device host --lifetime persistent
kill -HUP $keeper
wait_for grep -q 'continues the last broker: domains 1, segments 1' "$scratch/brokers"
try /gpushm/bin/gpushm rm w/old
if grep -v -e ' info ' -e 'ended with status 0' "$scratch/brokers"; then
  echo "try_floor: the brokers report the lines above" >&2
  exit 1
fi

# The root has no program for the test that is left out.
try /kit/bin/gpushm_base_test --gtest_brief=1 --gtest_filter=-child_process.program_inherits_only_standard_streams
try /kit/bin/gpushm_client_test --gtest_brief=1
echo "try_floor: runs with glibc $(readlink "$root/lib/x86_64-linux-gnu/libc.so.6" | sed 's/libc-\(.*\)\.so/\1/')"
