#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds .deb and .rpm packages of the shipped build in build/packages, and checks them: lintian and rpmlint find nothing, and the
# packages are installed, used and removed again without a trace (try_packages.sh).
#
#   scripts/packages.sh [JOBS]
set -euo pipefail

cd "$(dirname "$0")/.."
jobs=${1:-$(nproc)}
tree=build/release
output=build/packages
rm -rf "$output"
mkdir -p "$output"

pack() { # GENERATOR
  (cd "$tree" && cpack -G "$1" >"$OLDPWD/$output/cpack.$1.log" 2>&1) || { cat "$output/cpack.$1.log" >&2; exit 1; }
  rm -rf "$output/_CPack_Packages"
}
scripts/build.sh packages "$jobs"
pack DEB
# Nothing is compiled: another folder of libraries, a licence instead of Debian's documents.
cmake --preset packages -DGPUSHM_PACKAGES=RPM >"$output/configure.log"
cmake --build --preset packages --parallel "$jobs" >"$output/build.log"
pack RPM

# The dependencies of all but gpushmd say glibc 2.28.
unpacked=$output/unpacked
for file in "$output"/*.deb; do
  dpkg-deb -x "$file" "$unpacked"
done
scripts/check_floor.py --allow usr/bin/gpushmd "$(getconf GNU_LIBC_VERSION | cut -d ' ' -f 2)" "$unpacked"
rm -rf "$unpacked"

# As root, lintian warns about itself. Hints ("I", "P") are about habits of Debian's own packages.
declare -A checks
lintian --allow-root --fail-on error,warning "$output"/*.deb >"$output/lintian.log" 2>&1 &
checks[lintian]=$!
rpmlint --config deploy/packages/rpmlint.toml "$output"/*.rpm >"$output/rpmlint.log" 2>&1 &
checks[rpmlint]=$!
failed=
scripts/try_packages.sh "$output" || [ $? = 77 ] || failed=yes
for check in "${!checks[@]}"; do
  if ! wait "${checks[$check]}" || grep -qE '^[^ ]+: [EW]: |^[EW]: ' "$output/$check.log"; then
    cat "$output/$check.log" >&2
    echo "packages: $check reports the lines above: correct them, or add each to its list in deploy/packages with a reason" >&2
    failed=yes
  fi
done
[ -z "$failed" ] || exit 1
echo "packages: lintian and rpmlint report nothing"
ls -s --block-size=KiB "$output"/*.deb "$output"/*.rpm
