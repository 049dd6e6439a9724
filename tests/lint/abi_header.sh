#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compares the declarations and constants of a C header, without comments and line breaks, with the committed ones: covers what
# a library does not show (abi_guard.sh): constants, the order of parameters of one type, what a function may write through a
# pointer to void. With UPDATE=1 in the environment it writes the file.
#
#   abi_header.sh HEADER FROZEN
set -euo pipefail

header=$1
frozen=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# One line for each directive, declaration, member and enumerator; the version is not part of the interface.
# shellcheck disable=SC2016  # Perl's variables
perl -0777 -ne '
  s{/\*.*?\*/}{}gs;
  s{\\\n}{ }g;
  my $text = "";
  for my $line (split /\n/) {
    $line =~ s/\s+/ /g;
    $line =~ s/^ | $//g;
    next if $line eq "" or $line =~ /^#define GPUSHM_VERSION_/;
    $text .= $line =~ /^#/ ? "\n$line\n" : "$line ";
  }
  $text =~ s/^((?!#).*)$/split_up($1)/gme;
  $text =~ s/[ \n]*\n/\n/g;
  $text =~ s/^\s+//;
  print $text;
  sub split_up {
    my ($line) = @_;
    $line =~ s/([;{]|,(?= GPUSHM_\w+ =)) */$1\n/g;
    $line =~ s/(?<=[^\n]) *\} */\n}\n/g;
    $line =~ s/\}\n+(?=\w+;)/} /g;
    return $line;
  }' "$header" >"$scratch/now"

if [ "${UPDATE:-0}" = 1 ]; then
  cp "$scratch/now" "$frozen"
fi
if ! diff -u --label "$frozen" --label "$header" "$frozen" "$scratch/now"; then
  echo "The declarations of $header differ from $frozen." >&2
  echo "An unintended change may break programs: docs/adr/0028-c-interface.md lists the permitted additions." >&2
  echo "If it is intended: UPDATE=1 $0 $*" >&2
  exit 1
fi
