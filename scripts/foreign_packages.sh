#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Unpacks packages of another architecture or release below a directory, for a cross build or as the root of an older system
# (Debian, Ubuntu; does not need root). Does not add the architecture to the machine's apt configuration: a foreign libc6 must
# have the version of the native one, and Ubuntu's main archive does not have arm64, so `apt-get update` would then fail.
#
#   scripts/foreign_packages.sh [--release NAME] ARCHITECTURE DIRECTORY PACKAGE...
#
#   --release NAME    of Debian, from the machine's mirror of it; exit status 77 if this is not Debian
set -euo pipefail

release=
if [ "$1" = --release ]; then
  release=$2
  shift 2
fi
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
if [ -n "$release" ]; then
  site=$(apt-get indextargets --format "\$(SITE)" "Created-By: Packages" "Origin: Debian" | grep '/debian/*$' | head -n 1 || true)
  if [ "$ID" != debian ] || [ -z "$site" ]; then
    echo "foreign_packages: no mirror of Debian $release" >&2
    exit 77
  fi
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $site $release main" >"$apt/sources.list"
  cat >>"$apt/apt.conf" <<EOF
Dir::Etc::sourcelist "$apt/sources.list";
Dir::Etc::sourceparts "-";
EOF
elif [ "$ID" = ubuntu ]; then
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
