#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests that gpushm-selftest keeps its results when it is killed, applies its limits, and counts repeated runs.
#
#   tests/lint/selftest.sh SELFTEST
set -euo pipefail

selftest=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fail() {
  echo "selftest: $*" >&2
  exit 1
}
json() { # FILE EXPRESSION: of the document d
  python3 -c 'import json, sys; d = json.load(open(sys.argv[1])); sys.exit(0 if eval(sys.argv[2]) else str(d)[:2000])' "$@"
}

"$selftest" --only demo.host --out "$scratch/one.json" >"$scratch/log" || fail "$(cat "$scratch/log")"
json "$scratch/one.json" \
  'd["finished"] and d["failed"] == 0 and d["not_run"] == [] and d["checks"][0]["name"].startswith("demo.host")'

# Killed when the first result has been printed: the file has that result, is marked as unfinished, and lists the missing
# checks.
mkfifo "$scratch/fifo"
"$selftest" --only demo.host --only demo.fake --only conformance.fake --out "$scratch/killed.json" >"$scratch/fifo" &
while read -r line; do
  case $line in
    passed* | skipped*) break ;;
  esac
done <"$scratch/fifo"
kill -KILL $!
{ wait $!; } 2>/dev/null || true
json "$scratch/killed.json" \
  'not d["finished"] and d["passed"] + d["skipped"] == len(d["checks"]) >= 1 and "conformance.fake" in d["not_run"]'

# A check that takes longer than its limit fails, and the next one still runs.
if "$selftest" --only conformance.fake --only demo.host.i --time-limit 5ms --out "$scratch/late.json" >"$scratch/log"; then
  fail "a check ended within 5 ms"
fi
json "$scratch/late.json" \
  'd["finished"] and d["failed"] == 3 and all("not finished after 5.00 ms" in c["detail"] for c in d["checks"])'

# Repeats only checks that can run concurrently, the given number of times.
"$selftest" --repeat 5 --jobs 3 --only test.cdi_share_device --only demo --out "$scratch/repeated.json" >"$scratch/log" ||
  fail "$(cat "$scratch/log")"
json "$scratch/repeated.json" \
  'len(d["checks"]) == 1 and d["checks"][0]["detail"] == "5 runs" and d["checks"][0]["data"]["runs"] == 5'
if "$selftest" --repeat 4 --jobs 2 --time-limit 1ms --only test.gpushm_core_heap --out "$scratch/failing.json" \
     >"$scratch/log" 2>&1; then
  fail "a test ended within 1 ms"
fi
json "$scratch/failing.json" 'sorted(f["run"] for f in d["checks"][0]["data"]["failures"]) == [1, 2, 3, 4]'
echo "selftest: results are kept, limits applied, repetitions counted"
