# SPDX-License-Identifier: Apache-2.0
"""A trainer that updates the weights of two engines while they run; all of them are killed at random.

    python3 rl_updates.py [--device DEVICE] [--framework numpy|torch] [--updates N] [--kills N]

Each update is a version of "rl/policy": an engine sees all of it or nothing. The trainer writes the number of its update into
each tensor, so that an engine which got one half of an update would notice, and this program would fail.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import time
from typing import Any

import gpushm

NAME = "rl/policy"
LAYERS = 8
WIDTH = 256


def tensors_of(framework: str, device: str) -> dict[str, Any]:
    """A model: the trainer's, or an engine's."""
    if framework == "numpy":
        import numpy

        return {f"layers.{i}.weight": numpy.zeros((WIDTH, WIDTH), "float32") for i in range(LAYERS)}
    import torch

    place = "cpu" if device == "host" else f"cuda:{device}"
    return {f"layers.{i}.weight": torch.zeros(WIDTH, WIDTH, device=place) for i in range(LAYERS)}


def train(framework: str, device: str) -> None:
    model = tensors_of(framework, device)
    with gpushm.WeightPublisher(NAME, device=device) as publisher:
        while True:
            step = publisher.begin()  # the number of the update; an optimizer's step comes here
            for tensor in model.values():
                tensor[...] = step
            publisher.update(model, number=step)
            print(step, flush=True)


def serve(framework: str, device: str) -> None:
    model = tensors_of(framework, device)
    with gpushm.WeightSubscriber(NAME) as subscriber:
        while True:
            subscriber.wait()  # an engine that has requests polls between two steps instead
            version = subscriber.apply(model)
            if version is None:
                continue
            contents = {float(tensor.min()) for tensor in model.values()} | {float(tensor.max()) for tensor in model.values()}
            if contents != {float(version)}:
                sys.exit(f"version {version} has parts of others: {sorted(contents)}")
            print(version, flush=True)


def start(role: str, given: argparse.Namespace) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, __file__, "--role", role, "--framework", given.framework, "--device", given.device],
        stdout=subprocess.PIPE, text=True, bufsize=1,
    )  # fmt: skip


def line_of(role: str, process: subprocess.Popen[str]) -> int:
    line = process.stdout.readline() if process.stdout is not None else ""
    if not line:
        sys.exit(f"the {role} has ended with status {process.wait()}")
    return int(line)


def run(given: argparse.Namespace) -> None:
    processes = {role: start(role, given) for role in ("trainer", "engine 0", "engine 1")}
    kills = dict.fromkeys(processes, 0)
    begin = time.monotonic()
    try:
        last = 0
        next_kill = given.updates / (given.kills + 1)
        while last < given.updates:
            last = line_of("trainer", processes["trainer"])
            if last >= next_kill and sum(kills.values()) < given.kills:
                next_kill += given.updates / (given.kills + 1)
                role = random.choice(list(processes))
                processes[role].kill()
                processes[role].wait()
                processes[role] = start(role, given)
                kills[role] += 1
        seconds = time.monotonic() - begin
        for role in ("engine 0", "engine 1"):  # that they get what is published last
            while line_of(role, processes[role]) < last:
                pass
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
    died = ", ".join(f"{role} {count}" for role, count in kills.items())
    print(f"{last} updates in {seconds:.1f} s, each applied whole; killed: {died}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="host", help="host (default), or the number of a GPU")
    parser.add_argument("--framework", default="numpy", choices=("numpy", "torch"), help="numpy (default; host only), or torch")
    parser.add_argument("--updates", type=int, default=200, help="until then (200)")
    parser.add_argument("--kills", type=int, default=5, help="processes that are killed meanwhile (5)")
    parser.add_argument("--role", choices=("trainer", "engine 0", "engine 1"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.role is None:
        run(given)
    elif given.role == "trainer":
        train(given.framework, given.device)
    else:
        serve(given.framework, given.device)


if __name__ == "__main__":
    main()
