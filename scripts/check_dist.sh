#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks a tarball of scripts/dist.sh: it is smaller than 60 MiB; programs and libraries depend only on the tree and glibc; no
# search path leaves the tree; gpushm's programs are position-independent; no symbol needs a glibc newer than 2.36. Exit status
# 77: passed, except that symbols were not checked, because this machine's glibc is newer.
#
#   scripts/check_dist.sh TARBALL
set -euo pipefail

newest_allowed=2.36
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
tar -C "$scratch" -xJf "$1"
tree=$(echo "$scratch"/gpushm-*)
failures=0
too_new=0
programs=0
fail() {
  echo "check_dist: $*" >&2
  failures=$((failures + 1))
}

max_mib=60
if [ "$(stat -c %s "$1")" -ge $((max_mib * 1024 * 1024)) ]; then
  fail "the tarball has $max_mib MiB or more"
fi
if [ ! -x "$tree/bin/gpushm" ]; then
  fail "bin/gpushm is missing"
fi

while IFS= read -r -d '' file; do
  [ "$(head -c 4 "$file" | tail -c 3)" = ELF ] || continue
  programs=$((programs + 1))
  short=${file#"$tree"/}
  # Not those of tests and benchmarks (gpushm_…).
  if [[ $short =~ ^bin/gpushm(-|$) && $(readelf -hW "$file") == *" EXEC "* ]]; then
    fail "$short is not position-independent"
  fi
  search=$(readelf -d "$file" | sed -n 's/.*(\(RPATH\|RUNPATH\)).*\[\(.*\)\]/\2/p')
  case $search in
    "\$ORIGIN" | "\$ORIGIN/.." | "\$ORIGIN/../lib" | "") ;;
    *) fail "$short has the search path $search" ;;
  esac
  while read -r line; do
    case $line in
      *"not found"*) fail "$short: $line" ;;
      *"=> $tree/"* | *linux-vdso* | *ld-linux-* | *"statically linked"*) ;;
      *libc.so.* | *libm.so.* | *libdl.so.* | *libpthread.so.* | *librt.so.* | *libresolv.so.*) ;;
      *) fail "$short depends on a library of this machine: $line" ;;
    esac
  done < <(env -i PATH="$PATH" ldd "$file" 2>/dev/null)
  newest=$(readelf --dyn-syms -W "$file" | grep -o 'GLIBC_2\.[0-9.]*' | sort -Vu | tail -n 1 || true)
  if [ -n "$newest" ] &&
     [ "$(printf '%s\n' "GLIBC_$newest_allowed" "$newest" | sort -V | tail -n 1)" != "GLIBC_$newest_allowed" ]; then
    echo "check_dist: $short needs $newest"
    too_new=$((too_new + 1))
  fi
done < <(find "$tree" -type f -print0)

here=$(getconf GNU_LIBC_VERSION | cut -d ' ' -f 2)
if [ "$too_new" -gt 0 ] && [ "$(printf '%s\n' "$newest_allowed" "$here" | sort -V | tail -n 1)" = "$newest_allowed" ]; then
  fail "$too_new files need a glibc newer than $newest_allowed"
fi
if [ "$failures" -gt 0 ]; then
  exit 1
fi
env -i "$tree/bin/gpushm" --version >/dev/null
echo "check_dist: $programs programs and libraries are self-contained"
if [ "$too_new" -gt 0 ]; then
  echo "check_dist: skipped: glibc $here is newer than $newest_allowed; build tarballs for distribution on Debian 12"
  exit 77
fi
