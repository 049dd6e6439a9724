#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the site of the documents in build/docs/html: the Markdown pages, and the C, C++ and Python references. A warning is an error.
#
#   scripts/docs.sh deps     a virtual environment in build/docs/venv, of package versions that docs/site/requirements.txt pins
#   scripts/docs.sh build    the site
set -euo pipefail

cd "$(dirname "$0")/.."
root=build/docs
venv=$root/venv

deps() {
  scripts/venv.sh "$venv" docs/site/requirements.txt
}

comments() { # PROJECT PATTERN SETTING...: the comments of the headers as XML
  rm -rf "$root/doxygen/$1"
  mkdir -p "$root/doxygen/$1"
  {
    cat docs/site/Doxyfile
    printf '%s\n' "INPUT = include/gpushm" "FILE_PATTERNS = $2" "OUTPUT_DIRECTORY = $root/doxygen" "XML_OUTPUT = $1" "${@:3}"
  } | doxygen -
}

build() {
  comments c '*.h' 'EXTENSION_MAPPING = h=C' 'OPTIMIZE_OUTPUT_FOR_C = YES'
  comments cpp '*.hpp'
  # Without -n (nitpicky): the C++ domain has no declarations of the standard library.
  "$venv/bin/sphinx-build" --builder html --conf-dir docs/site --doctree-dir "$root/doctrees" --jobs auto --quiet \
    --fail-on-warning --keep-going . "$root/html"
  echo "docs: $root/html/index.html"
}

case ${1:-} in
  deps | build) "$1" ;;
  *) sed -n '3,/^set/p' "$0" | sed -n 's/^# \{0,1\}//p' >&2; exit 2 ;;
esac
