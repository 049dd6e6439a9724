# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
if [ "$1" = 0 ]; then  # not an upgrade
  if [ -d /run/systemd/system ]; then
    systemctl disable --now gpushmd.service || :
  elif command -v systemctl >/dev/null; then
    systemctl disable --quiet gpushmd.service || :
  fi
fi
