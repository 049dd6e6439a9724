#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compiles a program that includes only one public header, without warnings, with each compiler.
#
#   header_stands_alone.sh INCLUDE_DIR HEADER COMPILER...
set -euo pipefail

include=$1
header=$2
shift 2
# C headers must also compile as C++.
if [[ $header == *.h ]]; then
  echo "cc $header"
  printf '#include "%s"\n#include "%s"\nint main(void) { return 0; }\n' "$header" "$header" |
    cc -std=c11 -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wstrict-prototypes -Werror -fsyntax-only \
       -I "$include" -x c -
fi
for compiler in "$@"; do
  echo "$compiler $header"
  # Twice: a header without an include guard fails, too.
  printf '#include "%s"\n#include "%s"\nint main() { return 0; }\n' "$header" "$header" |
    "$compiler" -std=c++20 -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror -fsyntax-only \
                -I "$include" -x c++ -
done
if grep -nE '# *include *[<"](cuda|nvml|asio|flatbuffers|fmt|nlohmann|base/|wire/|client/)' "$include/$header"; then
  echo "$header: a public header includes only public headers and the standard library's" >&2
  exit 1
fi
