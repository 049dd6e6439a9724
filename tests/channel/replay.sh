#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Has the implementation of the channel's protocol repeat random runs of its model.
#
#   replay.sh SOURCE_DIR PROGRAM
set -euo pipefail

runs=${RUNS:-300}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$1/tests/model/check.sh" traces "$scratch/traces" "$runs" 1
if [ -e "$scratch/traces" ]; then
  "$2" "$scratch/traces" "$runs"
fi
