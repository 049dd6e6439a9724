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
rc=0
ctest --preset "$1" "${@:2}" || rc=$?
echo "tests: $1: $SECONDS s"
exit $rc
