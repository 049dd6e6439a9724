#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the example in Rust against the library of a build tree and runs it with a broker; then runs the tests that bindgen
# generates, which compare each structure's size and offsets in Rust with those in C.
#
#   rust_example.sh SOURCE_DIRECTORY LIBRARY_DIRECTORY GPUSHM RUSTC
set -euo pipefail

source=$1
libraries=$2
gpushm=$3
export RUSTC=$4
for tool in "$RUSTC" bindgen; do
  if ! "$tool" --version >/dev/null 2>&1; then
    echo "rust_example: skipped: rustc or bindgen not found (make deps)"
    exit 0
  fi
done
scratch=$(mktemp -d)
broker=
trap '[ -z "$broker" ] || kill "$broker"; rm -rf "$scratch"' EXIT
socket=$scratch/socket

RUSTFLAGS='-D warnings' "$source/examples/rust/build.sh" "$scratch" "$source/include" "$libraries"
"$RUSTC" --test --edition 2021 --cap-lints allow "$scratch/gpushm_sys.rs" -L "native=$libraries" -l dylib=gpushm \
  -o "$scratch/layout"
LD_LIBRARY_PATH=$libraries "$scratch/layout" >"$scratch/layout.log" || { cat "$scratch/layout.log" >&2; exit 1; }
passed=$(sed -n 's/^test result: ok. \([0-9]*\) passed;.*/\1/p' "$scratch/layout.log")
# With newer versions of bindgen the compiler compares the layouts.
compiled=$(grep -c '\["Size of gpushm_' "$scratch/gpushm_sys.rs" || true)
structures=$((passed + compiled))
expected=$(grep -c '^typedef struct [a-z_]* {' "$source/include/gpushm/gpushm.h")
if [ "$structures" != "$expected" ]; then
  echo "rust_example: the layout of $structures structures was compared; gpushm.h has $expected" >&2
  exit 1
fi
echo "rust_example: $structures structures have the layout of C"

"$gpushm" serve --socket "$socket" --log-level error >"$scratch/broker.log" 2>&1 &
broker=$!
"$scratch/share" "$socket" >"$scratch/output"
diff -u - "$scratch/output" <<'END'
rust/table, version 1: 4096 bytes, they begin with "hello from Rust"
open "rust/tables": no such segment in domain default (`gpushm ls` lists segments; an open with a timeout waits for the name)
code:      no_such_segment
cause:     no such segment in domain default
next step: `gpushm ls` lists segments; an open with a timeout waits for the name
END
# Its segments are removed when it exits.
deadline=$((SECONDS + 20))
until left=$("$gpushm" ls --socket "$socket" --names) && [ -z "$left" ]; do
  if [ $SECONDS -ge $deadline ]; then
    echo "rust_example: not removed: $left" >&2
    exit 1
  fi
done

"$gpushm" create rust/table --size 4096 --lifetime persistent --device host --socket "$socket" >/dev/null
if "$scratch/share" "$socket" 2>"$scratch/output"; then
  echo "rust_example: created a segment that already exists" >&2
  exit 1
fi
diff -u - "$scratch/output" <<'END'
share: create "rust/table": a segment of this name exists in domain default (open it, remove it first, or choose another name)
END
echo "rust_example: shared"
