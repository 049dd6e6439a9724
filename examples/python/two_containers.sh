#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Two containers and one model: one loads a small transformer, another one runs it, without a copy. They share the
# broker's socket, and nothing else: no host namespaces, no privileges, no volume for the data.
#
#   IMAGE=my-python-image examples/python/two_containers.sh [DEVICE [FRAMEWORK]]
#
# IMAGE has Python 3.10 or later with gpushm, NumPy and safetensors (and the framework). A broker runs on the machine
# (`gpushm serve`); GPUSHM_SOCKET is its socket, if that is not the default one. RUNTIME is podman or docker;
# OPTIONS are more options of `run`, such as `--device nvidia.com/gpu=0` for a GPU (docs/cdi.md).
set -eu

case ${1:-} in
  -*) sed -n '3,/^set/s/^# \{0,1\}//p' "$0"; [ "$1" = --help ] || [ "$1" = -h ] || exit 2; exit 0 ;;
esac
here=$(cd "$(dirname "$0")" && pwd)
device=${1:-host}
framework=${2:-numpy}
runtime=${RUNTIME:-podman}
socket=${GPUSHM_SOCKET:-/run/gpushm/d/default/socket}
name=example/transformer

in_container() {
  # The folder of the socket, not the socket: a broker that is restarted makes a new one.
  # shellcheck disable=SC2086 # OPTIONS are words
  "$runtime" run --rm --interactive --network none --cap-drop all --security-opt no-new-privileges --read-only \
    --tmpfs /tmp --volume "$(dirname "$socket"):/run/gpushm/d/default" --env GPUSHM_SOCKET="/run/gpushm/d/default/$(basename "$socket")" \
    --volume "$here:/examples:ro" ${OPTIONS:-} "${IMAGE:?an image with Python and gpushm}" "${PYTHON:-python3}" "$@"
}

in_container /examples/loader.py "$name" "$device"
echo "3 1 4 1 5" | in_container /examples/engine.py "$name" "$framework"
