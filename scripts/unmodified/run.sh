#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Proofs with programs that nobody changed, in real runc containers, on a machine with a GPU (issue 39; decision 42).
#
#   scripts/unmodified/run.sh [--dist DIR] [--prepared DIR] [--out DIR] [--only a,b,...] [--limit SECONDS] [--quick]
#
# --dist      an unpacked tarball of `make dist`, or a build directory: gpushm, libgpushm.so.1 and libgpushm-ipc.so are looked for
#             below it (default: `dist` below --prepared). Without libgpushm-ipc.so only what needs no library runs, and the
#             rest is listed as skipped.
# --prepared  what scripts/unmodified/prepare.sh made (default: .carry/unmodified)
# --out       one JSON document for each run, OUT/unmodified.NAME.json (default: $OUT, else build/unmodified)
# --only      some of the runs, in this order:
#               three    three exporters of equal sizes, one importer, all PID 1
#               runtime  producer and consumer of the CUDA runtime, static and shared, 1 MiB and ten ints
#               ucx      UCX: get of device memory, in one namespace and between two containers
#               torch    PyTorch's tensors over a Unix socket, both allocators, both directions
#               cost     calls, opens, records, 100,000 opens and closes
#               rows     the rows of the three published security tables
#               nccl     PyTorch's NCCL between two containers of one GPU each (two GPUs)
#               vllm     vLLM's "ipc" weight update between a trainer's and an engine's container; needs /tmp/site, which
#                        engine/setup.sh of `prepare.sh --engine` unpacks
# --limit     seconds for all of it (default 540); a run that does not fit in what is left is skipped, and says so
# --quick     fewer repetitions
#
# Needs root and Python 3.10. Exit status 0: each run was made and ended as expected; 1: something did not; 77: nothing ran.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
prepared=$root/.carry/unmodified
dist=""
arguments=()
while [ $# -gt 0 ]; do
  case $1 in
    --prepared) prepared=$2; shift ;;
    --dist) dist=$2; shift ;;
    --out|--only|--limit) arguments+=("$1" "$2"); shift ;;
    --quick) arguments+=("$1") ;;
    *) sed -n '3,/^set -euo/p' "$0" | sed 's/^# \{0,1\}//;/^set /d' >&2; exit 64 ;;
  esac
  shift
done
prepared=$(cd "$prepared" && pwd)
# The runtime starts itself again without its environment, so its library must be where the loader looks.
if [ -x "$prepared/runc/runc" ] && [[ $(ldconfig -p) != *libseccomp.so.2* ]]; then
  install -m 0755 "$prepared/runc/libseccomp.so.2" /usr/local/lib/libseccomp.so.2
  ldconfig
fi
exec python3 "$here/driver.py" --prepared "$prepared" --dist "${dist:-$prepared/dist}" "${arguments[@]}"
