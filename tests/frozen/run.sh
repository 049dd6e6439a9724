#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs programs of the frozen version beside those of this tree: each combination of broker, producer and consumer, each with
# the libraries that it was compiled for. (The C interface is not frozen.)
#
#   run.sh COMMIT_FILE DIRECTORY HEAD_PEER HEAD_LIBRARIES
#
# Exits with 77 if nothing was built, or no version is frozen.
set -euo pipefail

commit=$(grep -v '^#' "$1" || true)
if [ -z "$commit" ]; then
  echo "frozen: skipped: no version is frozen"
  exit 77
fi
tree=$2/$commit
if ! [ -e "$tree/complete" ]; then
  echo "frozen: skipped: $tree was not built"
  exit 77
fi
declare -A peers=([head]=$3 [frozen]=$tree/peer) libraries=([head]=$4 [frozen]=$tree/lib)
scratch=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$scratch"' EXIT

# as WHICH ARGUMENT...: runs the peer of that version
as() {
  LD_LIBRARY_PATH=${libraries[$1]} "${peers[$1]}" "${@:2}"
}

# share BROKER PRODUCER CONSUMER: the version of the libraries of each
share() {
  local socket=$scratch/socket status=0
  mkfifo "$scratch/input"
  as "$1" serve "$socket" <"$scratch/input" &
  local broker=$!
  exec 9>"$scratch/input"
  as "$3" consume "$socket" "$scratch/ticket" &
  local consumer=$!
  as "$2" produce "$socket" "$scratch/ticket" &
  local producer=$!
  wait "$consumer" || { status=$?; echo "consumer: exit status $status" >&2; }
  if [ "$status" = 0 ]; then
    as "$3" die "$socket" || true
    wait "$producer" || { status=$?; echo "producer: exit status $status" >&2; }
  fi
  exec 9>&-
  kill "$producer" 2>/dev/null || true
  wait "$broker" || { status=$?; echo "broker: exit status $status" >&2; }
  rm -rf "$scratch/input" "$scratch"/ticket* "$socket"*
  if [ "$status" != 0 ]; then
    echo "frozen: broker $1, producer $2, consumer $3: failed" >&2
    exit 1
  fi
  echo "frozen: broker $1, producer $2, consumer $3: works"
}

for broker in head frozen; do
  for producer in head frozen; do
    for consumer in head frozen; do
      share "$broker" "$producer" "$consumer" 2>"$scratch/errors" || { cat "$scratch/errors" >&2; exit 1; }
    done
  done
done
echo "frozen: all tests passed"
