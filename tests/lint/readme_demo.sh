#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the demo that README.md shows, and compares its lines with the transcript there. Times, process ids and the path of the
# socket differ in each run.
#
#   readme_demo.sh GPUSHM README
set -euo pipefail

gpushm=$1
readme=$2

steps() {
  sed -E 's/^ +[0-9.]+ s +/  T  /; s/\(pid [0-9]+\)/(pid N)/; s/ \([0-9.]+ (s|ms|us)\)$/ (T)/; s/ serves .*/ serves PATH/'
}

transcript=$(sed -n '/^<!-- transcript:demo -->$/,/^<!-- \/transcript:demo -->$/p' "$readme" | sed '/^<!--/d; /^```/d')
command=$(head -n 1 <<<"$transcript")
case $command in
  '$ gpushm demo '*) ;;
  *)
    echo "readme_demo: $readme has no transcript of gpushm demo" >&2
    exit 1
    ;;
esac
read -ra arguments <<<"${command#'$ gpushm '}"
diff -u --label README.md --label "$command" <(tail -n +2 <<<"$transcript" | steps) <("$gpushm" "${arguments[@]}" | steps)
echo "readme_demo: the demo prints what README.md shows"
