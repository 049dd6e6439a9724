# SPDX-License-Identifier: Apache-2.0
"""Live updates of weights: how fast a version is made and applied, and how long an engine stands still.

    python3 bench/python/updates.py [--json out.json] [--gib 8] [--tensors 300] [--updates 10]
        [--device cpu|cuda:0] [--trainer-device cuda:1] [--modes copy,swap,remap,torch]

One process is the trainer, this one the engine: it makes steps, each of which reads all weights. For each
mode of WeightSubscriber, and for `torch`, which passes the tensors of each update through a queue of
torch.multiprocessing (CUDA IPC handles, or files of /dev/shm) and copies them:

- reference: seconds of a copy of the same tensors in one process, best of 5, and its rate;
- publish: seconds of the trainer's update(); the ratio of the reference's seconds to them;
- apply: seconds of apply() until the GPU has done it, with no step beside it; the same ratio;
- stall: the longest interval between the ends of two steps around an update, less the median of those
  while the trainer writes, and less that of an engine without updates, in milliseconds.

Prints a line for each; exits with 1 if an engine has ever had parts of two updates. Needs the package and
PyTorch, and the command gpushm (GPUSHM_COMMAND, or in PATH).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as standard
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from own_broker import broker

MODES = ["copy", "swap", "remap", "torch"]
NAME = "bench/policy"


def make(gib: float, tensors: int, device: str) -> dict[str, Any]:
    import torch

    columns = 1024
    rows = max(1, int(gib * (1 << 30)) // tensors // columns // 2)
    return {
        f"layers.{i}.weight": torch.zeros(rows, columns, dtype=torch.bfloat16, device=device)
        for i in range(tensors)
    }


def finish(device: str) -> None:
    if device != "cpu":
        import torch

        torch.cuda.synchronize(device)


def fill(weights: dict[str, Any], value: int) -> None:
    for each in weights.values():
        each.fill_(value % 250)


def step(weights: dict[str, Any]) -> Any:
    """Reads all weights: the largest element of each tensor."""
    import torch

    return torch.stack([each.max() for each in weights.values()])


def reference(given: argparse.Namespace) -> float:
    weights = [make(given.gib, given.tensors, given.device) for _ in range(2)]
    best = float("inf")
    for _ in range(5):
        finish(given.device)
        began = time.perf_counter()
        for source, target in zip(weights[0].values(), weights[1].values(), strict=True):
            target.copy_(source, non_blocking=True)
        finish(given.device)
        best = min(best, time.perf_counter() - began)
    return best


def train(mode: str, given: argparse.Namespace, requests: Any, answers: Any, handles: Any) -> None:
    """For each request one update; answers with its seconds."""
    import gpushm

    device = given.trainer_device or given.device
    weights = make(given.gib, given.tensors, device)
    place = "host" if given.device == "cpu" else given.device
    with gpushm.WeightPublisher(NAME, device=place) as publisher:
        value = 0
        while requests.get():
            value += 1
            fill(weights, value)
            finish(device)
            began = time.perf_counter()
            if mode == "torch":
                handles.put((value, weights))
            else:
                publisher.update(weights)
            answers.put((value, time.perf_counter() - began))


class Engine:
    def __init__(self, mode: str, given: argparse.Namespace, handles: Any) -> None:
        import gpushm

        self.mode = mode
        self.device = given.device
        self.weights = make(given.gib, given.tensors, given.device)
        self.handles = handles
        self.subscriber = None if mode == "torch" else gpushm.WeightSubscriber(NAME, mode=mode)

    def apply(self) -> bool:
        if self.subscriber is not None:
            return self.subscriber.apply(self.weights) is not None
        if self.handles.empty():
            return False
        _, tensors = self.handles.get()
        for name, each in self.weights.items():
            each.copy_(tensors[name], non_blocking=True)
        finish(self.device)  # before the trainer may change them
        return True

    def check(self, value: int) -> None:
        found = {float(each) for each in step(self.weights)}
        if found != {float(value % 250)}:
            sys.exit(f"{self.mode}: an engine has {sorted(found)} after update {value}")


def measure(mode: str, given: argparse.Namespace, seconds: float) -> dict[str, Any]:
    import torch.multiprocessing

    context = torch.multiprocessing.get_context("spawn")
    requests, answers, handles = context.Queue(), context.Queue(), context.Queue()
    trainer = context.Process(
        target=train, args=(mode, given, requests, answers, handles), daemon=True
    )
    trainer.start()
    engine = Engine(mode, given, handles)
    published, applied, stalls = [], [], []
    # With the engine stopped.
    for _ in range(given.updates):
        requests.put(True)
        value, took = answers.get()
        published.append(took)
        began = time.perf_counter()
        while not engine.apply():
            pass
        finish(given.device)
        applied.append(time.perf_counter() - began)
        engine.check(value)
    # With the engine's steps beside the trainer.
    quiet = []
    for _ in range(50):
        began = time.perf_counter()
        step(engine.weights)
        finish(given.device)
        quiet.append(time.perf_counter() - began)
    for _ in range(given.updates):
        requests.put(True)
        intervals, last = [], time.perf_counter()
        is_applied = False
        after = 0
        while after < 3:
            is_applied = engine.apply() or is_applied
            step(engine.weights)
            finish(given.device)
            now = time.perf_counter()
            intervals.append(now - last)
            last = now
            after += is_applied
        value, _ = answers.get()
        engine.check(value)
        stalls.append(max(intervals[-4:]) - statistics.median(intervals[:-3] or intervals))
    requests.put(False)
    trainer.join(60)
    if engine.subscriber is not None:
        engine.subscriber.close()
    return {
        "mode": mode,
        "publish_s": round(statistics.median(published), 6),
        "publish_ratio": round(seconds / statistics.median(published), 3),
        "apply_s": round(statistics.median(applied), 6),
        "apply_ratio": round(seconds / statistics.median(applied), 3),
        "step_ms": round(1e3 * statistics.median(quiet), 3),
        "stall_ms": round(1e3 * statistics.median(stalls), 3),
        "longest_stall_ms": round(1e3 * max(stalls), 3),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json")
    parser.add_argument("--gib", type=float, default=8)
    parser.add_argument("--tensors", type=int, default=300)
    parser.add_argument("--updates", type=int, default=10)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--trainer-device")
    parser.add_argument("--modes", default=",".join(MODES))
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with broker():
        seconds = reference(given)
        size = given.gib * (1 << 30)
        print(f"reference: {1e3 * seconds:.2f} ms, {size / seconds / 1e9:.1f} GB/s", flush=True)
        rows.append({"mode": "reference", "copy_s": round(seconds, 6), "bytes": int(size)})
        for mode in given.modes.split(","):
            row = measure(mode, given, seconds)
            rows.append(row)
            print(
                f"{mode:6} publish {1e3 * row['publish_s']:.2f} ms ({row['publish_ratio']:.2f} of the copy's rate), "
                f"apply {1e3 * row['apply_s']:.2f} ms ({row['apply_ratio']:.2f}), stall "
                f"{row['stall_ms']:.2f} ms, at most {row['longest_stall_ms']:.2f} (step {row['step_ms']:.2f} ms)",
                flush=True,
            )
    if given.json:
        Path(given.json).write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    standard.freeze_support()
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    sys.exit(main())
