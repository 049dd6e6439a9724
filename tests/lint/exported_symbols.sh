#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compares the exported symbols of a shared library with the committed list. With UPDATE=1 in the environment it writes the
# list.
#
#   exported_symbols.sh NM LIBRARY LIST
set -euo pipefail

nm=$1
library=$2
list=$3
actual=$(mktemp)
trap 'rm -f "$actual"' EXIT
# The type letter and the number of constructor and destructor variants depend on the optimisation; names do not.
# Absolute symbols are the version nodes.
"$nm" -D --defined-only --demangle "$library" | awk '$2 != "A"' | sed -E 's/^[0-9a-f]+ . //' |
  LC_ALL=C sort -u >"$actual"
if [ "${UPDATE:-0}" = 1 ]; then
  cp "$actual" "$list"
fi
if ! [ -s "$actual" ]; then
  echo "$library exports nothing" >&2
  exit 1
fi
if grep -E '^(std|asio|flatbuffers)::|gpushm::[a-z_]*detail|^(vtable|typeinfo|typeinfo name|guard variable) for (std|asio|flatbuffers)' "$actual"; then
  echo "$library: the symbols above are not part of a public interface" >&2
  exit 1
fi
if ! diff -u --label "$list" --label "$library" "$list" "$actual"; then
  echo "The symbols of $library differ from $list. If the change is intended: UPDATE=1 $0 $*" >&2
  exit 1
fi
