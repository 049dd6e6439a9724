#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the wheel for aarch64 with the distribution's cross compiler, in build/python/dist-aarch64, and checks it: its stable ABI,
# that it runs with glibc 2.28, auditwheel's verdict, and an import with a broker and the command in QEMU, by the distribution's
# Python for arm64 (Debian 12; on others the last is skipped).
#
#   scripts/wheel_aarch64.sh [--check-only]    --check-only: the wheel that is there; COMMAND=PATH: with this command gpushm, for
#                                              aarch64 and glibc 2.28, instead of compiling it
#
# The headers of Python are this machine's: the module uses the stable ABI only, in which nothing depends on the architecture
# between Linux systems of 64 bits.
set -euo pipefail

cd "$(dirname "$0")/.."
export PIP_DISABLE_PIP_VERSION_CHECK=1
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
root=build/python
venv=$root/venv
python=$venv/bin/python
dist=$root/dist-aarch64
tag=manylinux_2_28_aarch64

# Warnings are errors in the build for x86_64 only: GCC's flow analysis reports the standard library itself here.
build() {
  local -a settings=(
    --config-settings "cmake.define.CMAKE_TOOLCHAIN_FILE=$PWD/cmake/aarch64-linux-gnu.cmake"
    --config-settings cmake.define.GPUSHM_WERROR=OFF --config-settings cmake.define.GPUSHM_MOLD=
  )
  if [ -n "${COMMAND:-}" ]; then
    settings+=(--config-settings "cmake.define.GPUSHM_COMMAND=$(realpath "$COMMAND")")
  fi
  rm -rf "$dist"
  _PYTHON_HOST_PLATFORM=linux-aarch64 "$python" -m pip wheel . --quiet --no-deps --no-build-isolation \
    "${settings[@]}" --wheel-dir "$dist"
  "$python" -m wheel tags --remove --platform-tag "$tag" "$dist"/*.whl >/dev/null
}

check() {
  local said
  "$venv/bin/abi3audit" --strict --summary "$dist"/*.whl
  python3 scripts/check_floor.py "$dist"/*.whl
  said=$("$venv/bin/auditwheel" show "$dist"/*.whl)
  if [[ ${said//$'\n'/ } != *"consistent with the following platform tag: \"$tag\""* ]]; then
    echo "wheel_aarch64: auditwheel does not confirm the platform tag of the wheel:" >&2
    echo "$said" >&2
    return 1
  fi
  "$venv/bin/twine" check --strict "$dist"/*.whl
}

# Imports it, and runs its command, in QEMU.
try() {
  # shellcheck source=/dev/null
  . /etc/os-release
  if [ "${ID:-}${VERSION_ID:-}" != debian12 ]; then
    echo "wheel_aarch64: not imported: the packages of Python for arm64 are named for Debian 12"
    return
  fi
  local foreign=build/aarch64-python site
  scripts/foreign_packages.sh arm64 "$foreign" libc6 libgcc-s1 libstdc++6 python3.11-minimal libpython3.11-minimal \
    libpython3.11-stdlib libexpat1 zlib1g libssl3 libffi8 libbz2-1.0 liblzma5 libuuid1
  site=$root/site-aarch64
  rm -rf "$site"
  "$python" -m pip install --quiet --target "$site" --only-binary=:all: --python-version 3.11 --implementation cp \
    --platform "$tag" --platform manylinux_2_17_aarch64 "$dist"/*.whl
  # QEMU does not emulate threads with a descriptor table of their own (docs/ci.md, "aarch64").
  PYTHONPATH=$site scripts/one_table.py qemu-aarch64 -L "$foreign" "$foreign/usr/bin/python3.11" - <<'PYTHON'
import platform

import gpushm

with gpushm.Broker() as broker, gpushm.connect(broker.socket) as client:
    with client.create("w", 1 << 16, device="host") as segment:
        segment.fill(7)
        segment.publish()
        assert client.open("w").read(0, 2) == b"\x07\x07"
print("wheel_aarch64: imported on", platform.machine(), "by Python", platform.python_version())
PYTHON
  qemu-aarch64 -L "$foreign" "$site/bin/gpushm" --version
}

case ${1:-} in
  '') build ;;
  --check-only) ;;
  *) sed -n '3,/^set/p' "$0" | sed -n 's/^# \{0,1\}//p' >&2; exit 2 ;;
esac
check
try
ls -s --block-size=KiB "$dist"
