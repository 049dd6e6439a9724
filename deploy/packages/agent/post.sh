# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
# Nothing is enabled or started: the administrator chooses which of the units a node runs.
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload || :
  # After an upgrade.
  systemctl try-restart gpushmd.service || :
fi
