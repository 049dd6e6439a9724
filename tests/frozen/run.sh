#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the build of build.sh with the libraries of this tree: each combination of broker, producer and consumer, and
# programs compiled for the frozen interface.
#
#   run.sh COMMIT_FILE DIRECTORY HEAD_PEER HEAD_LIBRARIES
#
# Exits with 77 if nothing was built, or nothing is frozen.
set -euo pipefail

commit=$(grep -v '^#' "$1" || true)
if [ -z "$commit" ]; then
  echo "frozen: skipped: no interface is frozen"
  exit 77
fi
tree=$2/$commit
if ! [ -e "$tree/complete" ]; then
  echo "frozen: skipped: $tree was not built"
  exit 77
fi
head_peer=$3
declare -A libraries=([head]=$4 [frozen]=$tree/lib)
scratch=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$scratch"' EXIT

# as WHICH PROGRAM ARGUMENT...: runs it with the libraries of that version
as() {
  LD_LIBRARY_PATH=${libraries[$1]} "${@:2}"
}

# share BROKER PRODUCER CONSUMER: the version of the libraries of each
share() {
  local socket=$scratch/socket status=0
  mkfifo "$scratch/input"
  as "$1" "$peer" serve "$socket" <"$scratch/input" &
  local broker=$!
  exec 9>"$scratch/input"
  as "$3" "$peer" consume "$socket" "$scratch/ticket" &
  local consumer=$!
  as "$2" "$peer" produce "$socket" "$scratch/ticket" &
  local producer=$!
  wait "$consumer" || { status=$?; echo "consumer: exit status $status" >&2; }
  if [ "$status" = 0 ]; then
    as "$3" "$peer" die "$socket" || true
    wait "$producer" || { status=$?; echo "producer: exit status $status" >&2; }
  fi
  exec 9>&-
  kill "$producer" 2>/dev/null || true
  wait "$broker" || { status=$?; echo "broker: exit status $status" >&2; }
  rm -rf "$scratch/input" "$socket"*
  if [ "$status" != 0 ]; then
    echo "frozen: broker $1, producer $2, consumer $3: failed" >&2
    exit 1
  fi
  echo "frozen: broker $1, producer $2, consumer $3: works"
}

for peer in "$head_peer" "$tree/peer"; do
  for broker in head frozen; do
    for producer in head frozen; do
      for consumer in head frozen; do
        share "$broker" "$producer" "$consumer" 2>"$scratch/errors" || { cat "$scratch/errors" >&2; exit 1; }
      done
    done
  done
done
# Programs compiled for the frozen interface run with the current libraries.
as head "$tree/c_interface_test"
echo "frozen: all tests passed"
