#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Completes command lines in bash, zsh or fish as a user would, with a broker that has two segments.
#
#   completion_test.sh SHELL GPUSHM COMPLETIONS
set -euo pipefail

shell=$1
gpushm=$2
completions=$3
if ! command -v "$shell" >/dev/null; then
  echo "completion_test: skipped, $shell is not installed"
  exit 0
fi
scratch=$(mktemp -d)
broker=
trap '[ -z "$broker" ] || kill "$broker" || true; rm -rf "$scratch"' EXIT
PATH=$(dirname "$gpushm"):$PATH
export PATH GPUSHM_SOCKET=$scratch/socket HOME=$scratch
mkfifo "$scratch/ready"
exec 9<>"$scratch/ready"
"$gpushm" serve --ready-fd 9 >/dev/null 2>&1 &
broker=$!
read -r -t 30 -u 9
for name in w/llama "w/with blank"; do
  "$gpushm" create "$name" --size 1 --device host --lifetime persistent >/dev/null
done
mkdir "$scratch/work"
cd "$scratch/work"
touch a-file
mkdir a-folder

# Prints the words that the shell offers for the last one of the command line WORD..., one a line, sorted.
complete() { # WORD...
  # shellcheck disable=SC2016  # variables of that shell
  case $shell in
    bash)
      bash --norc --noprofile -c '
        source "$1"; shift
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
        compopt() { :; }   # only in a completion that a key press has begun
        _gpushm
        printf "%s\n" "${COMPREPLY[@]}"' bash "$completions/gpushm.bash" "$@"
      ;;
    fish)
      fish --no-config -c 'source $argv[1]; complete --do-complete "$argv[2..-1]"' "$completions/gpushm.fish" "$@" | cut -f1
      ;;
    zsh)  # completes only at a terminal: the functions of a key press are replaced by ones that print
      zsh -f -c '
        compdef() { :; }
        _files() { [ "$1" = -/ ] && print -l *(/N) || print -l *(N); }
        _describe() { local each; for each in "${(@P)2}"; print -r -- "${each%%:*}"; }
        source "$1"; shift
        words=("$@"); CURRENT=$#
        _gpushm' zsh "$completions/_gpushm" "$@"
      ;;
  esac | sort
}

failed=0
expect() { # EXPECTED-WORDS WORD...
  local expected=$1 got
  shift
  got=$(complete "$@" | tr '\n' ',')
  if [ "${got%,}" != "$expected" ]; then
    echo "gpushm completes \"${*:2}\" with \"${got%,}\", not \"$expected\"" >&2
    failed=1
  fi
}

expect create gpushm cr
expect release,rm,run gpushm r
expect create,pub,stat,sub gpushm channel ""
expect diff,ls,pin,rollback,unpin,verify gpushm weights ""
expect --size gpushm create x --si
expect leased,persistent gpushm create x --lifetime ""
expect w/llama gpushm open w/l
expect matrix gpushm help mat
case $shell in
  bash)
    expect 'w/llama,w/with\ blank' gpushm open w/
    expect a-file,a-folder gpushm load a
    expect a-folder gpushm run --libraries a
    ;;
  zsh) expect a-file,a-folder gpushm load a ;;
  fish) expect a-file,a-folder/ gpushm load a ;;
esac
# An option that was given is not offered again, unless it may be repeated.
expect "" gpushm create x --size 1 --si
expect --tensors gpushm load f --tensors a --tens
# Nothing after an unknown command.
expect "" gpushm nosuch ""
exit "$failed"
