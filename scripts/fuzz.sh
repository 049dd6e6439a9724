#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs every fuzz program for some time. Writes new inputs below the build tree and only reads the committed corpus.
# To keep new inputs, run fuzz_NAME -merge=1 NEW_FOLDER BUILD_DIR/tests/fuzz/corpus/NAME BUILD_DIR/corpus/NAME, and then
# scripts/fuzz_corpus.sh add NAME NEW_FOLDER/*
#
#   scripts/fuzz.sh BUILD_DIR SECONDS
set -euo pipefail

build=$(cd "$1" && pwd)
seconds=$2
found=0
while IFS= read -r program; do
  found=1
  name=${program##*/fuzz_}
  mkdir -p "$build/corpus/$name" "$build/crashes/$name"
  corpora=("$build/corpus/$name")
  if [ -d "$build/tests/fuzz/corpus/$name" ]; then
    corpora+=("$build/tests/fuzz/corpus/$name")
  fi
  echo "fuzz: $name for $seconds s"
  "$program" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=4096 -print_final_stats=1 \
             -artifact_prefix="$build/crashes/$name/" "${corpora[@]}" 2>"$build/crashes/$name/log" || {
    tail -n 60 "$build/crashes/$name/log" >&2
    exit 1
  }
  grep -E '^stat::number_of_executed_units|^Done' "$build/crashes/$name/log"
done < <(find "$build" -type f -name 'fuzz_*' -executable | sort)
if [ $found = 0 ]; then
  echo "fuzz: no program fuzz_* in $build" >&2
  exit 1
fi
