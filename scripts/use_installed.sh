#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Uses what is installed below a prefix (`make install`, a tarball of `make dist`, packages): the programs start, a broker serves a
# segment, completions and manual pages are there, and a program in C is compiled with the pkg-config file and shares a segment.
#
#   scripts/use_installed.sh PREFIX
set -euo pipefail

prefix=$(cd "$1" && pwd)
source=$(cd "$(dirname "$0")/.." && pwd)/tests/lint/consumer/consumer.c
[ -e "$source" ] || source=$(dirname "$0")/consumer.c  # a copy of both files
scratch=$(mktemp -d)
server=
finish() {
  if [ -n "$server" ]; then
    kill "$server" 2>/dev/null || true
    wait "$server" || true
  fi
  rm -rf "$scratch"
}
trap finish EXIT
fail() {
  echo "use_installed: $*" >&2
  [ ! -s "$scratch/log" ] || cat "$scratch/log" >&2
  exit 1
}

for program in gpushm gpushm-brokerd gpushm-keeper gpushmd; do
  "$prefix/bin/$program" --version >"$scratch/log" 2>&1 || fail "$program does not start"
done
: >"$scratch/log"

export GPUSHM_SOCKET=$scratch/socket
"$prefix/bin/gpushm" serve >"$scratch/log" 2>&1 &
server=$!
deadline=$((SECONDS + 30))
until "$prefix/bin/gpushm" ls >/dev/null 2>&1; do
  kill -0 $server 2>/dev/null || fail "gpushm serve ended"
  [ $SECONDS -lt $deadline ] || fail "gpushm serve does not answer within 30 s"
  sleep 0.05
done
"$prefix/bin/gpushm" create w/installed --size 1MiB --device host --lifetime persistent >"$scratch/log" 2>&1 || fail "gpushm create"
listed=$("$prefix/bin/gpushm" ls)
[[ $listed == *w/installed* ]] || fail "gpushm ls does not list the segment: $listed"
# The library for unchanged programs is found from the command's own folder.
"$prefix/bin/gpushm" run -- true >"$scratch/log" 2>&1 || fail "gpushm run"

pkgconfig=$(find "$prefix"/lib* -maxdepth 3 -name gpushm-broker.pc -printf '%h\n' -quit)
[ -n "$pkgconfig" ] || fail "no gpushm-broker.pc below $prefix"
flags=()
eval "flags=($(PKG_CONFIG_PATH=$pkgconfig pkg-config --cflags --libs gpushm-broker))"
cc -std=c11 "$source" "${flags[@]}" -o "$scratch/program" >"$scratch/log" 2>&1 || fail "a program in C does not compile"
LD_LIBRARY_PATH=$(dirname "$pkgconfig") "$scratch/program" "$scratch/own" >"$scratch/log" 2>&1 || fail "a program in C fails"
own=$(LD_LIBRARY_PATH=$(dirname "$pkgconfig") ldd "$scratch/program" | awk '$1 == "libgpushm.so.1" {print $3}')
[[ $(readlink -f "$own") == "$(readlink -f "$(dirname "$pkgconfig")")"/* ]] || fail "the program loads another libgpushm: $own"

for page in man1/gpushm.1 man3/gpushm.3 man8/{gpushm-brokerd,gpushm-keeper,gpushm-cdi-hook,gpushm-oci-runtime,gpushmd}.8; do
  [ -s "$prefix/share/man/$page" ] || [ -s "$prefix/share/man/$page.gz" ] || fail "no manual page $page"
done
for file in bash-completion/completions/gpushm zsh/site-functions/_gpushm fish/vendor_completions.d/gpushm.fish; do
  [ -s "$prefix/share/$file" ] || fail "no $file"
done
for unit in gpushm-brokerd gpushm-cdi-refresh gpushmd; do
  file=$prefix/lib/systemd/system/$unit.service
  [ -s "$file" ] || fail "no unit $unit.service"
done
echo "use_installed: $prefix: programs, libraries and files work"
