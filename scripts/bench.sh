#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs every Google Benchmark program of a build; one JSON file each, and a table on the terminal.
#
#   scripts/bench.sh BUILD_DIR OUTPUT_DIR
set -euo pipefail

build=$(cd "$1" && pwd)
mkdir -p "$2"
output=$(cd "$2" && pwd)
found=0
while IFS= read -r program; do
  found=1
  name=$(basename "$program")
  echo "bench: $name"
  "$program" --benchmark_out="$output/$name.json" --benchmark_out_format=json
done < <(find "$build/bench" -type f -executable ! -name '*.so*' ! -name gpushm_bench_empty | sort)
if [ $found = 0 ]; then
  echo "bench: no program in $build/bench" >&2
  exit 1
fi
echo "bench: results in $output"
