#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prints the commit since which changed files are checked: the one in the file PASSED, if it is an ancestor; else where this
# branch left the main branch; else some commits ago. Prints nothing, which selects all files, if there is no history, and with
# ALL=1 in the environment.
#
#   scripts/lint_base.sh [PASSED]
set -euo pipefail

cd "$(dirname "$0")/.."
if [ "${ALL:-}" = 1 ]; then
  exit 0
fi
passed=
if [ $# -gt 0 ] && [ -f "$1" ]; then
  passed=$(cat "$1")
fi
for commit in "$passed" "$(git merge-base HEAD origin/HEAD 2>/dev/null || true)" HEAD~10; do
  if commit=$(git rev-parse --verify --quiet "$commit^{commit}") && git merge-base --is-ancestor "$commit" HEAD &&
     { [ "$commit" != "$(git rev-parse HEAD)" ] || [ "$commit" = "$passed" ]; }; then
    echo "$commit"
    exit 0
  fi
done
