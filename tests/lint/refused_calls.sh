#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Fails if a program with a filter of system calls uses functions of the C library whose calls the filter refuses, although
# another function does the same with one that it allows: on a rare path they would end the program.
#
#   refused_calls.sh NM PROGRAM
set -euo pipefail

# recvmsg and sendmsg; poll.
refused='recv|recvfrom|send|sendto|select|pselect'
undefined=$("$1" -D --undefined-only "$2")
if ! grep -qw recvmsg <<<"$undefined"; then
  echo "$2 does not use recvmsg: is it the right program?" >&2
  exit 1
fi
if grep -E " ($refused)(@|\$)" <<<"$undefined"; then
  echo "$2: its filter refuses the functions above (apps/gpushm-brokerd/system_calls.cpp)" >&2
  exit 1
fi
