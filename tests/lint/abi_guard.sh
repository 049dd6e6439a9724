#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compares the binary interface of a shared library, functions and the types that they use, with the committed one. Any change
# is an error, even one that does not affect old programs. With UPDATE=1 in the environment it writes the file. abi_header.sh
# checks what this script cannot see.
#
#   abi_guard.sh LIBRARY FROZEN INCLUDE_DIRECTORY
#
# LIBRARY needs debug information for the definitions of its functions (gpushm_interface_sources). Types that no header in
# INCLUDE_DIRECTORY defines are left out: the type behind a handle may change.
set -euo pipefail

library=$1
frozen=$2
include=$3
if ! command -v abidw >/dev/null; then
  echo "abi_guard: skipped: abidw not found (package abigail-tools; make deps)"
  exit 0
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# Functions of GPUSHM_PRIVATE, for libraries of the same build.
cat >"$scratch/private" <<'END'
[suppress_function]
  name_regexp = ^gpushm_private_
  drop = yes
[suppress_function]
  symbol_name_regexp = ^gpushm_private_
  drop = yes
END
# The same text on every machine and with every compiler.
abidw --exported-interfaces-only --headers-dir "$include" --drop-private-types --suppressions "$scratch/private" \
      --no-architecture --no-corpus-path --no-comp-dir-path --no-show-locs --no-elf-needed --type-id-style hash \
      "$library" | sed -E "s| path='[^']*/| path='|" >"$scratch/now.xml"

sed -n "s/.*<elf-symbol name='\([^']*\)'.*/\1/p" "$scratch/now.xml" | LC_ALL=C sort >"$scratch/exported"
sed -n "s/.*<function-decl .*elf-symbol-id='\([^'@]*\).*/\1/p" "$scratch/now.xml" | LC_ALL=C sort >"$scratch/described"
undescribed=$(LC_ALL=C comm -23 "$scratch/exported" "$scratch/described")
if [ -n "$undescribed" ] || ! [ -s "$scratch/exported" ]; then
  echo "$library exports functions without debug information; add their sources to gpushm_interface_sources():" >&2
  echo "${undescribed:-(no function is exported)}" >&2
  exit 1
fi
if grep -E "<namespace-decl|<member-function|access='(private|protected)'" "$scratch/now.xml" >&2; then
  echo "$library: its interface uses the types above, which are not C" >&2
  exit 1
fi

if [ "${UPDATE:-0}" = 1 ]; then
  mkdir -p "$(dirname "$frozen")"
  cp "$scratch/now.xml" "$frozen"
  echo "abi_guard: wrote $frozen: $(wc -l <"$scratch/exported") functions"
  exit 0
fi
if ! [ -e "$frozen" ]; then
  echo "$frozen does not exist. To write it: UPDATE=1 $0 $*" >&2
  exit 1
fi
if ! abidiff --harmless --no-architecture "$frozen" "$scratch/now.xml"; then
  echo "$library does not have the interface of $frozen." >&2
  echo "An unintended change may break old programs: docs/adr/0028-c-interface.md lists the permitted additions." >&2
  echo "If it is intended: UPDATE=1 $0 $*" >&2
  exit 1
fi
echo "abi_guard: $(wc -l <"$scratch/exported") functions, same as $frozen"
