#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# clang-tidy over the product's sources, several at once. A file that was clean is not looked at again until it, a header
# that it includes, its compile command, .clang-tidy or clang-tidy itself changes.
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
find "$CACHE" -type f -mtime +30 -delete

# Sources that the build makes have to be there before anything can include them.
ninja -C "$build" -t targets all | sed -n 's/^\(generated\/[^:]*\): .*/\1/p' | xargs -r ninja -C "$build" >/dev/null

COMMON=$( { "$CLANG_TIDY" --version; cat .clang-tidy; } | sha256sum)
export COMMON

one() { # FILE COMMAND
  local file=$1 command=$2 inputs key
  # -M lists every header that is read, the system's too.
  inputs=$(cd "$BUILD" && eval "$(sed -E 's/ -o [^ ]+//; s/ -c / /; s/ -M[DT]? / /g; s/^[^ ]*ccache //' <<<"$command") -M -MT x" 2>/dev/null |
             tr -d '\\\n' | cut -d: -f2-) || inputs=
  if [ -n "$inputs" ]; then
    # shellcheck disable=SC2086  # a list of files
    # Another clone of the repository finds what this one looked at.
    key=$( { echo "$COMMON $command"; cd "$BUILD" && sha256sum $inputs; } | sed "s#$ROOT/#./#g" | sha256sum | cut -d ' ' -f 1)
    if [ -e "$CACHE/$key" ]; then
      return 0
    fi
  fi
  local output start=$SECONDS checks=()
  # The analyzer of clang 14 does not model coroutines: it reports their frames as uninitialised.
  if grep -q 'co_await\|co_return' "$file"; then
    checks=(--checks=-clang-analyzer-*)
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

# shellcheck disable=SC2016  # the inner shell's arguments
python3 - "$build/compile_commands.json" "$PWD" <<'PY' | xargs -0 -r -n 2 -P "$jobs" bash -c 'one "$1" "$2"' one
import json, os, sys
root = sys.argv[2]
for entry in json.load(open(sys.argv[1])):
    name = os.path.relpath(entry["file"], root)
    if name.split(os.sep)[0] in ("src", "apps") and name.endswith(".cpp"):
        sys.stdout.write(entry["file"] + "\0" + entry["command"] + "\0")
PY
