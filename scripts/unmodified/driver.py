# SPDX-License-Identifier: Apache-2.0
"""Makes the runs of run.sh, which documents the options. Writes one JSON document for each run.

Each document has `expected` and `as_expected` for what was known before (FACTS I1 to I7, U1 to U3,
decision 42), and says what was skipped and why. Nothing here is a test of CI: it needs a GPU.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time

from containers import device_nodes
from pairs import CannotRunError, Context
from runs_cuda import run_cost, run_rows, run_runtime, run_three
from runs_frameworks import run_nccl, run_torch, run_ucx, run_vllm

# Shortest first; seconds that a run needs at least.
RUNS = {
    "three": (run_three, 20),
    "runtime": (run_runtime, 40),
    "ucx": (run_ucx, 40),
    "torch": (run_torch, 60),
    "cost": (run_cost, 60),
    "rows": (run_rows, 60),
    "nccl": (run_nccl, 60),
    "vllm": (run_vllm, 150),
}


def machine(context):
    def first_line(*command):
        try:
            return (
                subprocess.run(command, capture_output=True, text=True, timeout=30)
                .stdout.strip()
                .splitlines()
            )
        except (OSError, subprocess.TimeoutExpired):
            return []

    return {
        "kernel": os.uname().release,
        "cores": os.cpu_count(),
        "gpus": first_line(
            "nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"
        ),
        "device_nodes": device_nodes(context.minors),
        "runc": first_line(*context.tools.runc, "--version")[:1],
        "python": sys.version.split()[0],
        "gpushm": first_line(context.gpushm, "--version")[:1] if context.gpushm else [],
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def main():
    parser = argparse.ArgumentParser(description="see run.sh")
    parser.add_argument("--prepared", required=True)
    parser.add_argument("--dist", default="")
    parser.add_argument("--out", default=os.environ.get("OUT") or "build/unmodified")
    parser.add_argument("--only", default=",".join(RUNS))
    parser.add_argument("--limit", type=float, default=540)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    names = arguments.only.split(",")
    unknown = [name for name in names if name not in RUNS]
    if unknown:
        parser.error(f"unknown run {unknown[0]}; known: {', '.join(RUNS)}")
    if os.geteuid() != 0:
        parser.error("needs root, for containers")
    os.makedirs(arguments.out, exist_ok=True)
    context = Context(arguments)
    facts = machine(context)
    made, bad = 0, []
    for name in [known for known in RUNS if known in names]:
        run, needed = RUNS[name]
        context.skipped = []
        context.log = name not in ("runtime", "cost", "rows")  # which measure
        context.whole_text = name == "ucx"
        document = {"run": name, "what": run.__doc__, "machine": facts, "parts": []}
        begin = time.monotonic()
        if context.left() < needed:
            context.skip(name, f"{context.left():.0f} s left, {needed} needed")
        else:
            try:
                document["parts"] = run(context)
            except CannotRunError as why:
                context.skip(name, str(why))
            except Exception as failure:  # the other runs go on
                document["failure"] = f"{type(failure).__name__}: {failure}"
        document["seconds"] = round(time.monotonic() - begin, 1)
        document["skipped"] = context.skipped
        judged = [part for part in document["parts"] if "as_expected" in part]
        surprises = [part for part in judged if not part["as_expected"]]
        document["summary"] = {
            "parts": len(document["parts"]),
            "as_expected": len(judged) - len(surprises),
            "not_as_expected": len(surprises),
            "skipped": len(context.skipped),
        }
        if context.domain is not None and context.domain.works():
            document["left_in_domain"] = context.domain.segments()
        made += bool(document["parts"])
        if surprises or "failure" in document:
            bad.append(name)
        with open(f"{arguments.out}/unmodified.{name}.json", "w") as out:
            json.dump(document, out, indent=1)
            out.write("\n")
        print(
            f"{name}: {document['summary']} {document['seconds']} s {document.get('failure', '')}",
            flush=True,
        )
        for part in surprises:
            surprise = {
                key: part[key]
                for key in ("mode", "program", "allocator", "row", "not_as_expected")
                if key in part
            }
            print(f"  not as expected: {surprise}", flush=True)
        for skipped in context.skipped:
            print(f"  skipped: {skipped['what']}: {skipped['why']}", flush=True)
    if context.domain is not None:
        print("broker: " + context.domain.close().replace("\n", "\nbroker: "), flush=True)
    if context.libraries:
        shutil.rmtree(context.libraries, ignore_errors=True)
    return 1 if bad else 0 if made else 77


if __name__ == "__main__":
    sys.exit(main())
