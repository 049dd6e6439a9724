#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks a tarball of scripts/dist.sh, the product or the test kit: it is smaller than 60 MiB and has its files; programs and
# libraries depend only on the tree, glibc and libgcc_s.so.1; no search path leaves the tree; gpushm's programs are
# position-independent; no symbol needs a glibc newer than 2.28, or 2.36 in gpushmd, in tests that use gRPC, in benchmarks, and in
# the libraries of these. Exit status 77: passed, except for these, because this machine's glibc is newer.
#
#   scripts/check_dist.sh TARBALL
set -euo pipefail

# What needs the distribution's libraries, because of gRPC or the benchmark library.
newest_allowed=2.36
with_distribution="bin/(gpushmd|agent_share_test|gpushm_bench_[a-z_]+)"
allow=()
here=$(getconf GNU_LIBC_VERSION | cut -d ' ' -f 2)
is_newer=
if [ "$(printf '%s\n' "$newest_allowed" "$here" | sort -V | tail -n 1)" != "$newest_allowed" ]; then
  is_newer=yes
  newest_allowed=$here
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
tar -C "$scratch" -xJf "$1"
tree=$(echo "$scratch"/gpushm-*)
failures=0
programs=0
fail() {
  echo "check_dist: $*" >&2
  failures=$((failures + 1))
}

max_mib=60
if [ "$(stat -c %s "$1")" -ge $((max_mib * 1024 * 1024)) ]; then
  fail "the tarball has $max_mib MiB or more"
fi
expected=(bin/gpushm bin/gpushm-brokerd bin/gpushm-keeper bin/gpushm-cdi-hook bin/gpushm-oci-runtime bin/gpushmd
          lib/libgpushm.so.1 lib/libgpushm-broker.so.1 lib/gpushm/ipc/libgpushm-ipc.so lib/gpushm/ipc/libgpushm.so.1)
if [[ ${tree##*/} == gpushm-testkit-* ]]; then
  expected+=(bin/gpushm-selftest bin/gpushm_base_test bin/gpushm_bench_broker share/tests.txt share/machines share/examples share/docs/cli.md
             share/abi/abi_check.cpp README.md LICENSE CHANGELOG.md)
else
  doc=share/doc/gpushm
  expected+=(include/gpushm/{gpushm.h,broker.h,client.hpp} lib/libgpushm.so lib/libgpushm-broker.so lib/pkgconfig/gpushm{,-broker}.pc
             lib/cmake/gpushm/gpushm-config.cmake lib/systemd/system/{gpushm-brokerd,gpushm-cdi-refresh,gpushmd}.service
             lib/sysusers.d/gpushm.conf share/man/man1/gpushm.1 share/man/man3/gpushm.3
             share/man/man8/{gpushm-brokerd,gpushm-keeper,gpushm-cdi-hook,gpushm-oci-runtime,gpushmd}.8
             share/bash-completion/completions/gpushm share/zsh/site-functions/_gpushm share/fish/vendor_completions.d/gpushm.fish
             "$doc"/{LICENSE,README.md,CHANGELOG.md,cli.md,errors.md,libraries/libyaml-dev})
  # The product, and nothing else.
  while IFS= read -r file; do
    fail "$file is not a part of the product"
  done < <(cd "$tree" && find . -type f \( -path './bin/*' ! -path './bin/gpushm' ! -path './bin/gpushm-*' ! -path './bin/gpushmd' -o \
             -name '*selftest*' -o -path './lib/fake/*' \))
  while IFS= read -r line; do
    fail "a unit starts a program that is not below /usr/local/bin: $line"
  done < <(grep -H '^ExecStart=' "$tree"/lib/systemd/system/*.service | grep -v '=/usr/local/bin/gpushm')
fi
for file in "${expected[@]}"; do
  if [ ! -e "$tree/$file" ]; then
    fail "$file is missing"
  fi
done

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
    "\$ORIGIN" | "\$ORIGIN/.." | "\$ORIGIN/../lib" | "\$ORIGIN/../lib/gpushm/agent" | "") ;;
    *) fail "$short has the search path $search" ;;
  esac
  if [[ $short =~ ^$with_distribution$ || $short == lib/gpushm/agent/* || $short =~ ^lib/[^/]*$ && ! $short =~ ^lib/libgpushm ]]; then
    allow+=(--allow "$short" "$newest_allowed")
  else
    while read -r library; do
      if [[ ( -e $tree/lib/$library || -e $tree/lib/gpushm/agent/$library ) && $library != libgpushm* ]]; then
        fail "$short needs $library of the distribution"
      fi
    done < <(readelf -dW "$file" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
  fi
  while read -r line; do
    case $short:$line in
      # Unchanged programs are linked against the driver, a fake one in tests.
      bin/ipc_program_linked:*libcuda.so.1* | lib/fake/ipc_module.so:*libcuda.so.1*) ;;
      *"not found"*) fail "$short: $line" ;;
      *"=> $tree/"* | *linux-vdso* | *ld-linux-* | *"statically linked"*) ;;
      *libgcc_s.so.1* | *libc.so.* | *libm.so.* | *libdl.so.* | *libpthread.so.* | *librt.so.* | *libresolv.so.*) ;;
      *) fail "$short depends on a library of this machine: $line" ;;
    esac
  done < <(env -i PATH="$PATH" ldd "$file" 2>/dev/null)
done < <(find "$tree" -type f -print0)

if ! "$(dirname "$0")/check_floor.py" "${allow[@]}" "$tree"; then
  fail "files need a newer glibc"
fi
if [ "$failures" -gt 0 ]; then
  exit 1
fi
env -i "$tree/bin/gpushm" --version >/dev/null
# As programs of a container have it: a call of dlsym, and one of each function that it replaces.
said=$(env -i LD_PRELOAD="$tree/lib/gpushm/ipc/libgpushm-ipc.so" "$(command -v python3)" -c \
  'import ctypes, os, subprocess; ctypes.CDLL(None).getpid(); os.close(os.dup(0)); subprocess.run(["true"], check=True)' 2>&1) ||
  { echo "check_dist: a program with libgpushm-ipc.so preloaded fails: $said" >&2; exit 1; }
[ -z "$said" ] || { echo "check_dist: a program with libgpushm-ipc.so preloaded says: $said" >&2; exit 1; }
echo "check_dist: $programs programs and libraries are self-contained"
if [ -n "$is_newer" ]; then
  echo "check_dist: gpushmd and its libraries need glibc $here; build tarballs for distribution on Debian 12"
  exit 77
fi
