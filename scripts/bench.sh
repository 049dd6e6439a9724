#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs every Google Benchmark program of a build. Writes a JSON file for each, and prints a table. Skips gpushm_floods,
# gpushm_pings, gpushm_frames, gpushm_ends, gpushm_load, gpushm_attach, gpushm_suspend and gpushm_turns, which have different options.
#
#   scripts/bench.sh BUILD_DIR OUTPUT_DIR [PROGRAM...]        $BENCH_ARGS: more arguments of each
set -euo pipefail

build=$(cd "$1" && pwd)
mkdir -p "$2"
output=$(cd "$2" && pwd)
only=" ${*:3} "
read -ra more <<<"${BENCH_ARGS:-}"
found=0
while IFS= read -r program; do
  name=$(basename "$program")
  if [ "$only" != "  " ] && [[ $only != *" $name "* ]]; then
    continue
  fi
  found=1
  echo "bench: $name"
  "$program" --benchmark_out="$output/$name.json" --benchmark_out_format=json "${more[@]}"
done < <(find "$build/bench" -type f -executable ! -name '*.so*' ! -name gpushm_bench_empty \
  ! -name gpushm_floods ! -name gpushm_pings ! -name gpushm_frames ! -name gpushm_ends ! -name gpushm_load \
  ! -name gpushm_attach ! -name gpushm_suspend ! -name gpushm_turns | sort)
if [ $found = 0 ]; then
  echo "bench: $build/bench has no matching program" >&2
  exit 1
fi
echo "bench: results in $output"
