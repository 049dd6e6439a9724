# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload || :
fi
