#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Lists and changes the committed corpora. They are archives, tests/fuzz/corpus/NAME.tar.xz, which CMake unpacks.
#
#   scripts/fuzz_corpus.sh list NAME            lists its files
#   scripts/fuzz_corpus.sh add NAME FILE...     adds files, for instance a crash with its fix, or output of fuzz_NAME -merge=1
#   scripts/fuzz_corpus.sh remove NAME FILE...  removes files by name
set -euo pipefail

usage() {
  sed -n 's/^#   //p' "$0" >&2
  exit 2
}
[ $# -ge 2 ] || usage
action=$1 name=$2
shift 2
archive=$(cd "$(dirname "$0")/.." && pwd)/tests/fuzz/corpus/$name.tar.xz
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/$name"
if [ -e "$archive" ]; then
  tar -C "$folder" -xJf "$archive"
elif [ "$action" != add ]; then
  echo "fuzz_corpus: $archive does not exist" >&2
  exit 2
fi
case $action in
  list) [ $# = 0 ] || usage && ls -l "$folder/$name" && exit ;;
  add) [ $# -gt 0 ] || usage && cp -- "$@" "$folder/$name/" ;;
  remove) [ $# -gt 0 ] || usage && (cd "$folder/$name" && rm -- "$@") ;;
  *) usage ;;
esac
# Reproducible: the same files result in the same archive.
tar -C "$folder" --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 --mode=a=r,u+w,a+X -cf - "$name" | xz -9e >"$archive"
echo "fuzz_corpus: $archive: $(find "$folder/$name" -type f | wc -l) files"
