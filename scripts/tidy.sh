#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs clang-tidy on the product's sources, in concurrent groups: files changed since the last commit that passed, and a
# tenth of the rest (tidy_files.py); with ALL=1 in the environment all files. Skips a file that was clean until it, a header
# that it includes, its compile command, .clang-tidy or clang-tidy itself changes.
#
# With TIDY_ROOT in the environment: of that folder.
#
#   scripts/tidy.sh BUILD_DIR CLANG_TIDY [JOBS]
set -euo pipefail

build=$1
export CLANG_TIDY=$2
jobs=${3:-$(nproc)}
export BUILD=$build ROOT=$PWD
CACHE=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/gpushm-tidy
export CACHE
mkdir -p "$CACHE"
passed=$CACHE/passed${TIDY_ROOT:+-${TIDY_ROOT//\//-}}
find "$CACHE" -type f -mtime +30 ! -name 'passed*' -delete

# Generated sources must exist before other sources can include them.
ninja -C "$build" -t targets all | sed -n 's/^\(generated\/[^:]*\): .*/\1/p' | xargs -r ninja -C "$build" >/dev/null

COMMON=$( { "$CLANG_TIDY" --version; cat .clang-tidy; } | sha256sum)
export COMMON

one() { # FILE COMMAND
  local file=$1 command=$2 inputs key
  # -M lists every header that is read, including system headers.
  inputs=$(cd "$BUILD" && eval "$(sed -E 's/ -o [^ ]+//; s/ -c / /; s/ -M[DT]? / /g; s/^[^ ]*ccache //' <<<"$command") -M -MT x" 2>/dev/null |
             tr -d '\\\n' | cut -d: -f2-) || inputs=
  if [ -n "$inputs" ]; then
    # shellcheck disable=SC2086  # a list of files
    # Clones of the repository share the results.
    key=$( { echo "$COMMON $command"; cd "$BUILD" && sha256sum $inputs; } | sed "s#$ROOT/#./#g" | sha256sum | cut -d ' ' -f 1)
    if [ -e "$CACHE/$key" ]; then
      return 0
    fi
  fi
  local output start=$SECONDS checks=()
  # The analyzer of clang 14 does not model coroutines: it reports their frames as uninitialised.
  if grep -q 'co_await\|co_return' "$file"; then
    checks=(--checks=-clang-analyzer-*)
  elif [[ $file == */unity/* ]]; then
    checks=(--checks=-bugprone-suspicious-include)
  fi
  if output=$("$CLANG_TIDY" -p "$BUILD" --quiet "${checks[@]}" "$file" 2>&1); then
    [ -n "$inputs" ] && : >"$CACHE/$key"
    echo "tidy: ${file#"$PWD"/} ($((SECONDS - start)) s)"
  else
    printf '%s\n' "$output" | grep -vE '^[0-9]+ warnings? (generated|treated)|^Suppressed|^Use -header-filter'
    return 1
  fi
}
export -f one

since=$(scripts/lint_base.sh "$passed")

# shellcheck disable=SC2016  # the inner shell's arguments
scripts/tidy_files.py "$build" ${since:+"$since"} | xargs -0 -r -n 2 -P "$jobs" bash -c 'one "$1" "$2"' one
if [ -z "$(git status --porcelain)" ]; then
  git rev-parse HEAD >"$passed"
fi
