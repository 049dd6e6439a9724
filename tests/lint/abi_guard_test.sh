#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests that abi_guard.sh and abi_header.sh detect changes: changes a copy of the headers and of one source, builds a library of
# that source, and compares it with the library of the unchanged source.
#
#   abi_guard_test.sh SOURCE_DIRECTORY COMPILER
set -euo pipefail

root=$1
compiler=$2
here=$(cd "$(dirname "$0")" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
copy=$scratch/copy
unset UPDATE

options=(-std=c++20 -O0 -g2 -gdwarf-4 -fPIC -fvisibility=hidden -w)
if [[ $("$compiler" --version) == *clang* ]]; then
  options+=(-fstandalone-debug)
fi

fresh() {
  rm -rf "$copy"
  mkdir "$copy"
  cp -r "$root/include" "$root/src" "$copy"
}

change() { # FILE PERL_EXPRESSION: edits the copy; fails if nothing changes
  perl -0777 -pe "$2" "$copy/$1" >"$scratch/changed"
  if cmp -s "$copy/$1" "$scratch/changed"; then
    echo "abi_guard_test: '$2' changes nothing in $1: correct this test" >&2
    exit 1
  fi
  cp "$scratch/changed" "$copy/$1"
}

# Compiles its functions only, without their callees: they are not called.
build() {
  "$compiler" "${options[@]}" -I "$copy/include" -I "$copy/src" -c "$copy/src/client/c/c_client.cpp" -o "$scratch/c_client.o"
  "$compiler" -shared -fuse-ld=bfd "-Wl,--version-script=$root/cmake/gpushm.map,-soname,libgpushm.so.1" "$scratch/c_client.o" \
    -o "$scratch/libgpushm.so"
}

guard() {
  "$here/abi_guard.sh" "$scratch/libgpushm.so" "$scratch/frozen.xml" "$copy/include" >"$scratch/log" 2>&1
}

refused() { # WHAT PATTERN: of the guard's output
  build
  if guard || ! grep -q 'UPDATE=1 ' "$scratch/log" || ! grep -qE "$2" "$scratch/log"; then
    cat "$scratch/log" >&2
    echo "abi_guard_test: $1: not refused, or not for \"$2\"" >&2
    exit 1
  fi
  echo "refused: $1"
  fresh
}

accepted() { # WHAT
  build
  if ! guard; then
    cat "$scratch/log" >&2
    echo "abi_guard_test: $1: refused" >&2
    exit 1
  fi
  echo "accepted: $1"
  fresh
}

header() {
  "$here/abi_header.sh" "$copy/include/gpushm/gpushm.h" "$scratch/frozen.txt" >"$scratch/log" 2>&1
}

refused_in_header() { # WHAT PATTERN: of the guard's output
  if header || ! grep -q 'UPDATE=1 ' "$scratch/log" || ! grep -qE "$2" "$scratch/log"; then
    cat "$scratch/log" >&2
    echo "abi_guard_test: $1: not refused, or not for \"$2\"" >&2
    exit 1
  fi
  echo "refused: $1"
  fresh
}

fresh
UPDATE=1 header
header
# shellcheck disable=SC2016  # Perl's variables
{
  change include/gpushm/gpushm.h 's/(GPUSHM_MAX_METADATA_BYTES) 65536/$1 65535/'
  refused_in_header "a changed constant" '^\+#define GPUSHM_MAX_METADATA_BYTES 65535$'

  change include/gpushm/gpushm.h 's/const (void\* metadata;)/$1/'
  refused_in_header "a pointer to non-const void" '^\+void\* metadata;$'

  change include/gpushm/gpushm.h 's/(gpushm_string) operation,(\s+)(gpushm_string) object/$1 object,$2$3 operation/'
  refused_in_header "reordered parameters of one type" '^\+.*gpushm_string object, gpushm_string operation'

  change include/gpushm/gpushm.h 's/(typedef struct gpushm_connect_options)/\/* Reworded. *\/\n\n$1/; s/,\s+gpushm_string object/, gpushm_string object/'
  if ! header; then
    cat "$scratch/log" >&2
    echo "abi_guard_test: comments and line breaks: refused" >&2
    exit 1
  fi
  echo "accepted: comments and line breaks"
  fresh
}

if ! command -v abidw >/dev/null; then
  echo "abi_guard: skipped: abidw not found (package abigail-tools; make deps)"
  exit 0
fi
build
UPDATE=1 guard
guard

# shellcheck disable=SC2016  # Perl's variables
{
  change include/gpushm/gpushm.h 's/(gpushm_client_trim\(gpushm_client\* client)\)/$1, uint32_t flags)/'
  change include/gpushm/client.hpp 's/gpushm_client_trim\(handle_.get\(\)\)/gpushm_client_trim(handle_.get(), 0)/'
  change src/client/c/c_client.cpp 's/(gpushm_client_trim\(gpushm_client\* client)\)/$1, uint32_t)/'
  refused "an added parameter" 'gpushm_client_trim'

  change include/gpushm/gpushm.h 's/(GPUSHM_LIFETIME_LEASED =) 0/$1 1/; s/(GPUSHM_LIFETIME_PERSISTENT =) 1/$1 0/'
  refused "reordered enumerators" 'GPUSHM_LIFETIME_PERSISTENT'

  change include/gpushm/gpushm.h 's/(bool has_cache_max_entries;)\n/$1\n  uint64_t more;\n/'
  refused "an added member" 'more'

  change include/gpushm/gpushm.h 's/(  uint64_t cache_max_bytes;\n)(  uint64_t cache_max_entries;\n)/$2$1/'
  refused "two swapped options of one type" 'cache_max_entries'

  change include/gpushm/gpushm.h 's/GPUSHM_API gpushm_errc gpushm_client_trim[^;]*;//'
  change include/gpushm/client.hpp 's/glue::check\(gpushm_client_trim\(handle_.get\(\)\)\);//'
  change src/client/c/c_client.cpp 's/^gpushm_errc gpushm_client_trim\(.*?^}\n//ms'
  refused "a removed function" 'gpushm_client_trim'

  change include/gpushm/gpushm.h 's/(GPUSHM_API gpushm_errc gpushm_client_trim)/GPUSHM_API uint32_t gpushm_client_more(void);\n$1/'
  change src/client/c/c_client.cpp 's/^(gpushm_errc gpushm_client_trim)/uint32_t gpushm_client_more() { return 0; }\n$1/m'
  refused "an added function" 'gpushm_client_more'

  change include/gpushm/gpushm.h 's/(typedef struct gpushm_connect_options)/\/* Reworded. *\/\n\n$1/'
  change src/client/c/c_client.cpp 's/\A/\/\/ Reworded.\n\n/'
  change include/gpushm/gpushm.h 's/(gpushm_client_trim\(gpushm_client\* )client\)/$1connection)/'
  accepted "comments and names of parameters"

  change src/client/segment/client_impl.hpp 's/(class client_impl\b[^;{]*\{\n)/$1  unsigned long more_ = 0;\n/'
  change src/client/c/c_handles.hpp 's/(struct gpushm_client \{.*?)\};/$1  int more = 0;\n};/s'
  accepted "members of the type behind a handle"
}
