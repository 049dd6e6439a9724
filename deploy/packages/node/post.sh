# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
# Nothing is enabled or started: the administrator chooses which of the units a node runs.
# Without systemd, the administrator makes the user, or runs no broker of the node.
if command -v systemd-sysusers >/dev/null; then
  systemd-sysusers gpushm.conf || :
fi
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload || :
  # After an upgrade. Loses nothing: systemd keeps the segments while a broker is replaced.
  systemctl try-restart gpushm-brokerd.service gpushm-cdi-refresh.service || :
fi
