#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prints the command of an LLVM tool: CI's version if it is installed, else the default one.
#
#   scripts/tool.sh clang-format|clang-tidy|clang++
set -euo pipefail

if command -v "$1-14" >/dev/null; then
  echo "$1-14"
else
  echo "$1"
fi
