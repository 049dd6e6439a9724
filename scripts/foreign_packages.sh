#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Unpacks packages of another architecture below a directory, for a cross build (Debian, Ubuntu; does not need root). Does not
# add the architecture to the machine's apt configuration: a foreign libc6 must have the version of the native one, and
# Ubuntu's main archive does not have arm64, so `apt-get update` would then fail.
#
#   scripts/foreign_packages.sh ARCHITECTURE DIRECTORY PACKAGE...
set -euo pipefail

architecture=$1
directory=$2
packages=("${@:3}")
if [ "$(cat "$directory/.unpacked" 2>/dev/null)" = "${packages[*]}" ]; then
  exit 0
fi
echo "foreign_packages: $architecture: ${packages[*]}, in $directory"
apt=$(mktemp -d)
trap 'rm -rf "$apt"' EXIT
mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$apt/packages"
: >"$apt/status"
cat >"$apt/apt.conf" <<EOF
APT::Architecture "$architecture";
APT::Architectures "$architecture";
APT::Sandbox::User "root";
Acquire::Languages "none";
Acquire::Retries "3";
Dir::State::lists "$apt/lists";
Dir::State::status "$apt/status";
Dir::Cache "$apt/cache";
EOF
# shellcheck source=/dev/null
. /etc/os-release
if [ "$ID" = ubuntu ]; then
  echo "deb http://ports.ubuntu.com/ubuntu-ports $VERSION_CODENAME main universe" >"$apt/sources.list"
  cat >>"$apt/apt.conf" <<EOF
Dir::Etc::sourcelist "$apt/sources.list";
Dir::Etc::sourceparts "-";
EOF
fi
export APT_CONFIG=$apt/apt.conf
apt-get -q update
(cd "$apt/packages" && apt-get -q download "${packages[@]}")
rm -rf "$directory"
mkdir -p "$directory"
for package in "$apt"/packages/*.deb; do
  dpkg-deb -x "$package" "$directory"
done
echo "${packages[*]}" >"$directory/.unpacked"
