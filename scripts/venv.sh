#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes a virtual environment with the packages that REQUIREMENTS pins; does nothing if FOLDER has them.
#
#   scripts/venv.sh FOLDER REQUIREMENTS
set -euo pipefail

folder=$1
export PIP_DISABLE_PIP_VERSION_CHECK=1
wanted=$(cksum <"$2")
if [ -x "$folder/bin/python" ] && [ "$(cat "$folder/requirements" 2>/dev/null)" = "$wanted" ]; then
  echo "$folder: the virtual environment is complete"
  exit
fi
rm -rf "$folder"
mkdir -p "$(dirname "$folder")"
"${PYTHON:-python3}" -m venv "$folder"
"$folder/bin/python" -m pip install --quiet --requirement "$2"
echo "$wanted" >"$folder/requirements"
