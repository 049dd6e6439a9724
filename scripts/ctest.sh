#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the tests of a built preset, several at the same time (CTEST_PARALLEL_LEVEL); passes more arguments on to ctest.
# CMakePresets.json has the sanitizers' options.
#
#   scripts/ctest.sh PRESET [ctest arguments...]
set -euo pipefail

cd "$(dirname "$0")/.."
# The preset asan sets intercept_tls_get_addr=0. Without it the leak check sometimes mistakes the thread-local block of a
# library opened at run time for a header of an older glibc, judging by its address only, and crashes ("Tracer caught signal
# 11"; observed with GCC 12).
# Under the preset aarch64, QEMU reports pages of 64 KiB, as on Grace. That preset excludes tests of features that QEMU does not
# have (openat2, MADV_WIPEONFORK, seccomp filters, the start times of processes), tests of this machine's files, and two that
# take minutes in QEMU.
#
# The last lines are the number of GoogleTest cases, and the reasons of skipped ones.
log=build/$1/Testing/Temporary/LastTest.log
rm -f "$log"
rc=0
ctest --preset "$1" "${@:2}" || rc=$?
if [ ! -f "$log" ]; then
  exit $rc  # no test was started
fi
awk '
  / tests? from .* ran\. / { cases += $2 }
  skipping { reasons[$0]++; skipping = 0 }
  /: Skipped$/ { skipping = 1 }
  END {
    printf "tests: %d cases of GoogleTest programs\n", cases
    for (reason in reasons) printf "tests: skipped %d: %s\n", reasons[reason], reason
  }' "$log"
echo "tests: $1: $SECONDS s"
exit $rc
