#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the tests of a built preset, several at once (CTEST_PARALLEL_LEVEL); more arguments go to ctest. What is said to the
# sanitizers is in CMakePresets.json.
#
#   scripts/ctest.sh PRESET [ctest arguments...]
set -euo pipefail

cd "$(dirname "$0")/.."
# Without intercept_tls_get_addr=0, which the preset asan has, the leak check now and then takes the thread-local block of a
# library that was opened at run time for a header of an older glibc, by its address alone, and crashes ("Tracer caught
# signal 11"; seen with GCC 12's).
# Under the preset aarch64, QEMU says that pages have 64 KiB, as on Grace. What it does not have is left out there (openat2,
# MADV_WIPEONFORK, seccomp filters, the start times of processes), and so are tests of this machine's own files and two that
# take minutes in it.
#
# Ends with the number of cases of the GoogleTest programs, and with what was skipped and why.
log=build/$1/Testing/Temporary/LastTest.log
rc=0
ctest --preset "$1" "${@:2}" || rc=$?
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
