# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
/sbin/ldconfig
