#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Before C++20 each C++ header is one #error, not a hundred errors of its declarations.
#
#   needs_cxx20.sh INCLUDE-DIRECTORY COMPILER...
set -euo pipefail

include=$1
shift
for compiler in "$@"; do
  for header in "$include"/gpushm/*.hpp; do
    header=${header#"$include/"}
    if errors=$(printf '#include "%s"\n' "$header" | LC_ALL=C "$compiler" -std=c++17 -fsyntax-only -I "$include" -x c++ - 2>&1); then
      echo "$compiler compiles $header as C++17" >&2
      exit 1
    fi
    lines=$(grep 'error: ' <<<"$errors")
    # The second one ends the compilation.
    if [[ $(head -n 1 <<<"$lines") != *'gpushm needs C++20'* ]] || [ "$(wc -l <<<"$lines")" -gt 2 ]; then
      printf '%s: %s\n%s\n' "$compiler" "$header" "$errors" >&2
      exit 1
    fi
  done
done
