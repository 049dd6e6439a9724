#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the tests of a built preset, several at once (CTEST_PARALLEL_LEVEL); more arguments go to ctest.
#
#   scripts/ctest.sh PRESET [ctest arguments...]
set -euo pipefail

cd "$(dirname "$0")/.."
preset=$1
shift
exec ctest --test-dir "build/$preset" --output-on-failure --no-tests=error "$@"
