#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests errors of the C++ layer between libraries that g++ and clang++ have compiled, and programs of both compilers that link
# or load these libraries.
#
#   two_compilers.sh LIBRARY_DIRECTORY INCLUDE_DIRECTORY [CLANG++]
set -euo pipefail

libraries=$1
include=$2
clang=${3:-clang++}
for compiler in g++ "$clang"; do
  if ! command -v "$compiler" >/dev/null; then
    echo "two_compilers: skipped: $compiler not found (make deps)"
    exit 0
  fi
done
here=$(cd "$(dirname "$0")" && pwd)/two_compilers
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
flags=(-std=c++20 -fPIC -pthread -fvisibility=hidden -fvisibility-inlines-hidden -Wall -Wextra -Werror -I "$include")
link=(-pthread -L "$libraries" -lgpushm-broker -lgpushm "-Wl,-rpath,$libraries:\$ORIGIN,--no-undefined")

compile() { # COMPILER SOURCE OBJECT FLAG...
  "$1" "${flags[@]}" "${@:4}" -c "$here/$2" -o "$scratch/$3"
}

compile g++ party.cpp gcc.o -DPARTY=party_of_gcc
compile "$clang" party.cpp clang.o -DPARTY=party_of_clang
compile g++ party.cpp program_gcc.o -DPARTY=party_of_program -O2
compile "$clang" party.cpp program_clang.o -DPARTY=party_of_program -O2
compile g++ main.cpp main_gcc.o -DLINKED
compile "$clang" main.cpp main_clang.o
g++ -shared -Wl,-soname,libparty_gcc.so "$scratch/gcc.o" "${link[@]}" -o "$scratch/libparty_gcc.so"
"$clang" -shared -Wl,-soname,libparty_clang.so "$scratch/clang.o" "${link[@]}" -o "$scratch/libparty_clang.so"
# The error type must be exported: types with hidden visibility match only by name, which not every C++ library supports.
for name in gcc clang; do
  nm -D --defined-only "$scratch/libparty_$name.so" | grep ' _ZTIN6gpushm2v15errorE$' >/dev/null ||
    { echo "two_compilers: libparty_$name.so does not export the type of gpushm::error" >&2; exit 1; }
done
g++ "$scratch/main_gcc.o" "$scratch/program_gcc.o" -L "$scratch" -lparty_gcc -lparty_clang "${link[@]}" -o "$scratch/linked"
"$clang" "$scratch/main_clang.o" "$scratch/program_clang.o" "${link[@]}" -ldl -o "$scratch/loads"

"$scratch/linked" "$scratch/socket"
"$scratch/loads" "$scratch/socket" "$scratch/libparty_gcc.so" "$scratch/libparty_clang.so"
