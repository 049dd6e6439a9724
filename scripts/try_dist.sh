#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Unpacks the newest tarballs of `make dist` to a temporary directory and uses them, with an empty environment: of the product the
# demo, a broker and a program that is compiled with its pkg-config file; of the test kit two short benchmarks, the self-test's
# shortest check and its tests of broker and keeper processes.
#
#   scripts/try_dist.sh DIRECTORY
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
newest() { # DIRECTORY NAME
  local file
  file=$(find "$1" -maxdepth 1 -name "$2-[0-9]*.tar.xz" -printf '%T@ %p\n' | sort -n | tail -n 1 | cut -d ' ' -f 2-)
  if [ -z "$file" ]; then
    echo "try_dist: no tarball $2 in $1 (make dist)" >&2
    exit 1
  fi
  echo "$file"
}
scratch=$(mktemp -d)
chmod 755 "$scratch"  # tests of the broker start it under another uid
trap 'rm -rf "$scratch"' EXIT
for each in gpushm gpushm-testkit; do
  tarball=$(newest "$1" $each)
  mkdir "$scratch/$each"
  tar -C "$scratch/$each" --strip-components=1 -xJf "$tarball"
done
product=$scratch/gpushm
bin=$scratch/gpushm-testkit/bin

try() {
  local start=$SECONDS
  echo "try_dist: ${1##*/} ${*:2}"
  if ! env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME="$scratch" timeout 300 "$@" >"$scratch/log" 2>&1; then
    cat "$scratch/log" >&2
    echo "try_dist: failed: ${1##*/} ${*:2}" >&2
    exit 1
  fi
  echo "try_dist: ok ($((SECONDS - start)) s)"
}

try "$product/bin/gpushm" demo --device host --size 8MiB
try "$here/use_installed.sh" "$product"
try "$bin/gpushm_bench_broker"
try "$bin/gpushm_bench_cdi_registry" --benchmark_min_time=0.01
try "$bin/gpushm-selftest" --only demo.host --out "$scratch/results.json"
try "$bin/gpushm-selftest" --repeat 2 --only test.gpushm_client_test
# Tests of processes: a release build's brokers and keepers have other timing than those of the build tree.
only=()
for each in broker_start broker_kill keeper restart watched_broker busy_keeper brokerd_hostile_member written_table; do
  only+=(--only "test.${each}_test")
done
try "$bin/gpushm-selftest" "${only[@]}"

plugin=$(find "$1" -maxdepth 1 -name 'gpushm-gstreamer-*.tar.xz' -printf '%T@ %p\n' | sort -n | tail -n 1 | cut -d ' ' -f 2-)
if [ -n "$plugin" ] && command -v gst-inspect-1.0 >/dev/null; then
  mkdir "$scratch/plugin"
  tar -C "$scratch/plugin" -xJf "$plugin"
  try env GST_PLUGIN_PATH="$scratch/plugin" GST_REGISTRY="$scratch/registry" gst-inspect-1.0 gpushmsink
fi
