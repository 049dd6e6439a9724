#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the C examples with a separate broker.
#
#   c_examples.sh GPUSHM SHARE EVENT_LOOP
set -euo pipefail

gpushm=$1
share=$2
event_loop=$3
scratch=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; wait; rm -rf "$scratch"' EXIT
export GPUSHM_SOCKET=$scratch/socket

expect() {
  if ! grep -qxF "$1" "$2"; then
    echo "no line \"$1\" in:" >&2
    cat "$2" >&2
    exit 1
  fi
}

if "$event_loop" w/ </dev/null 2>"$scratch/err"; then
  echo "event_loop ran without a broker" >&2
  exit 1
fi
grep -q '^event_loop: connect ".*": .* (start a broker' "$scratch/err"

# A consumer that starts first waits for broker and name.
"$share" consume >"$scratch/consumed" &
consumer=$!
"$gpushm" serve >"$scratch/serve" 2>&1 &
mkfifo "$scratch/input"
for _ in $(seq 500); do
  [ -S "$GPUSHM_SOCKET" ] && break
  sleep 0.02
done
"$event_loop" w/ <"$scratch/input" >"$scratch/events" &
loop=$!
exec 9>"$scratch/input"
# It has subscribed when it shows this one.
"$gpushm" create w/ready --device host --size 4KiB --lifetime persistent >/dev/null
for _ in $(seq 500); do
  grep -q '^opened w/ready' "$scratch/events" && break
  sleep 0.02
done
"$gpushm" rm w/ready >/dev/null
"$share" produce "as C has it"
wait "$consumer"
expect "as C has it" "$scratch/consumed"
# The loop opens it when it is published, which can be later than the consumer.
for _ in $(seq 500); do
  grep -q '^opened w/text:' "$scratch/events" && break
  sleep 0.02
done
"$gpushm" rm w/text >/dev/null
for _ in $(seq 500); do
  grep -q '^removed w/text$' "$scratch/events" && break
  sleep 0.02
done
expect "removed w/text" "$scratch/events"
expect "opened w/text: 11 bytes" "$scratch/events"
# It exits at the end of its input, and on a signal.
exec 9>&-
wait "$loop"
"$share" produce again
# A file of its own: the shell empties it in the background, and a search before that
# would find the lines of the first run.
"$event_loop" w/ <>"$scratch/input" >"$scratch/events_again" &
loop=$!
for _ in $(seq 500); do
  grep -q '^opened w/text' "$scratch/events_again" && break
  sleep 0.02
done
expect "opened w/text: 5 bytes" "$scratch/events_again"
kill -TERM "$loop"
wait "$loop"
echo "c_examples: passed"
