# SPDX-License-Identifier: Apache-2.0
"""How long it takes to attach a model that another process keeps, against what else loads one.

    python3 bench/python/weights.py --json out.json [--gib 10] [--tensors 500] [--file DIRECTORY]
        [--kills 100] [--device 0|host] [part …]

Parts, of which all run by default; each writes its figures at once:

    attach       a new process opens a published model by safe_open and builds all tensors; the GPU memory
                 that it takes beyond its context
    safetensors  the safetensors package loads the same file (needs --file: a directory with room)
    cuda-ipc     torch.multiprocessing sends the same state dict to a new process (CUDA IPC)
    kills        an engine is killed with SIGKILL; a new process attaches

Times are of processes that have imported PyTorch and, on a GPU, created their context. Needs the package,
PyTorch, and the command gpushm (GPUSHM_COMMAND, or in PATH), which is started as the broker.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ALIGNMENT = 256


def table_of(tensors: int, gib: float) -> str:
    """Equal tensors of bfloat16 with 4,096 columns."""
    rows = max(1, int(gib * (1 << 30) / tensors / 8192))
    entries, at = {}, 0
    for i in range(tensors):
        size = rows * 8192
        entries[f"layers.{i}.weight"] = {
            "dtype": "BF16", "shape": [rows, 4096], "data_offsets": [at, at + size],
        }  # fmt: skip
        at += -(-size // ALIGNMENT) * ALIGNMENT
    return json.dumps(entries)


def connect() -> Any:
    import gpushm

    return gpushm.connect(os.environ["GPUSHM_SOCKET"])


def start_context(device: str) -> Any:
    import torch

    if device != "host":
        torch.zeros(1, device=f"cuda:{device}")
        torch.cuda.synchronize()
    return torch


def used_mib(torch: Any, device: str) -> float:
    if device == "host":
        return 0.0
    free, total = torch.cuda.mem_get_info(int(device))
    return float(total - free) / (1 << 20)


def engine(name: str, device: str) -> None:
    """For each line on standard input, opens the model: a line of JSON."""
    torch = start_context(device)
    import gpushm

    print("ready", flush=True)
    for _ in sys.stdin:
        before = used_mib(torch, device)
        times = [time.perf_counter()]
        client = connect()
        times.append(time.perf_counter())
        with gpushm.safe_open(name, "torch", client=client, timeout=60) as opened:
            times.append(time.perf_counter())
            tensors = opened.get_tensors()
        times.append(time.perf_counter())
        last = next(reversed(tensors.values()))
        result = {
            "ms": (times[3] - times[0]) * 1e3,
            "of_which": {
                part: round((times[i + 1] - times[i]) * 1e3, 2)
                for i, part in enumerate(("connect", "open", "tensors"))
            },
            "tensors": len(tensors),
            "extra_mib": used_mib(torch, device) - before,
            "last": float(last[-1, -1]),
        }
        print(json.dumps(result), flush=True)


def reader_of_file(path: str, device: str) -> None:
    torch = start_context(device)
    from safetensors.torch import load_file

    for _ in range(2):
        started = time.perf_counter()
        tensors = load_file(path, device="cpu" if device == "host" else f"cuda:{device}")
        if device != "host":
            torch.cuda.synchronize()
        print(json.dumps({"ms": (time.perf_counter() - started) * 1e3, "tensors": len(tensors)}))
        del tensors
    sys.stdout.flush()


def ipc_receiver(queue: Any, answers: Any, device: str) -> None:
    torch = start_context(device)
    answers.put("ready")
    for _ in range(2):
        started = queue.get()  # the time at which it was sent
        state = queue.get()
        if device != "host":
            torch.cuda.synchronize()
        answers.put((time.monotonic() - started, len(state)))
        del state


class Engine:
    def __init__(self, name: str, device: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--role", "engine", "--name", name, "--device", device],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
        )  # fmt: skip
        self.line()

    def line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"an engine has ended with status {self.process.wait()}")
        return line

    def attach(self) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        result: dict[str, Any] = json.loads(self.line())
        return result

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()


class Bench:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.results: dict[str, Any] = {
            "device": options.device, "gib": options.gib, "tensors": options.tensors,
            "python": sys.version.split()[0],
        }  # fmt: skip
        self.save()

    def save(self) -> None:
        Path(self.options.json).write_text(json.dumps(self.results, indent=1) + "\n")

    def note(self, part: str, figures: Any) -> None:
        self.results[part] = figures
        print(part, json.dumps(figures)[:300], flush=True)
        self.save()

    def make(self, client: Any) -> Any:
        """A published model: generated memory, without a file."""
        import gpushm

        table = table_of(self.options.tensors, self.options.gib)
        segment = client.create("bench/model", gpushm.tensors_size(table),
                                device=self.options.device, lifetime="persistent")  # fmt: skip
        segment.fill(0x3F)
        segment.publish_tensors(table)
        return segment

    def attach(self) -> None:
        runs = []
        for _ in range(5):
            one = Engine("bench/model", self.options.device)
            runs.append(one.attach() | {"again_ms": one.attach()["ms"]})
            one.kill()
        expected = 0.74609375  # 0x3f3f
        assert all(run["last"] == expected for run in runs)
        self.note("attach", {"best_ms": min(run["ms"] for run in runs), "runs": runs})

    def safetensors(self) -> None:
        import torch
        from safetensors.torch import save_file

        if self.options.file is None:
            print("safetensors: needs --file", flush=True)
            return
        path = Path(self.options.file) / "gpushm-bench.safetensors"
        shape = next(iter(json.loads(table_of(self.options.tensors, self.options.gib)).values()))["shape"]
        one = torch.full(shape, 0.75, dtype=torch.bfloat16)
        save_file({f"layers.{i}.weight": one.clone() for i in range(self.options.tensors)}, path)
        try:
            output = subprocess.run(
                [sys.executable, __file__, "--role", "file", "--name", str(path),
                 "--device", self.options.device],
                check=True, capture_output=True, text=True,
            ).stdout  # fmt: skip
            runs = [json.loads(line) for line in output.splitlines()]
            self.note("safetensors", {"best_ms": min(run["ms"] for run in runs), "runs": runs})
        finally:
            path.unlink()

    def cuda_ipc(self) -> None:
        import torch.multiprocessing

        context = torch.multiprocessing.get_context("spawn")
        receivers = []
        for _ in range(3):
            queue, answers = context.Queue(), context.Queue()
            child = context.Process(target=ipc_receiver, args=(queue, answers, self.options.device))
            child.start()
            receivers.append((child, queue, answers))
        for _, _, answers in receivers:
            answers.get(timeout=120)
        torch = start_context(self.options.device)
        where = "cpu" if self.options.device == "host" else f"cuda:{self.options.device}"
        # The same tensors as the model has, each a storage of its own.
        entries = json.loads(table_of(self.options.tensors, self.options.gib))
        state = {name: torch.ones(entry["shape"], dtype=torch.bfloat16, device=where)
                 for name, entry in entries.items()}  # fmt: skip
        runs = []
        for child, queue, answers in receivers:
            times = []
            for _ in range(2):
                queue.put(time.monotonic())
                queue.put(state)
                times.append(answers.get(timeout=120)[0] * 1e3)
            runs.append({"ms": times[0], "again_ms": times[1]})
            child.join(60)
        self.note("cuda-ipc", {"best_ms": min(run["ms"] for run in runs), "runs": runs})

    def kills(self) -> None:
        """At most four processes at a time: the next ones start while these are measured."""
        wanted, milliseconds = self.options.kills, []
        serving = Engine("bench/model", self.options.device)
        serving.attach()
        while len(milliseconds) < wanted:
            waiting = [Engine("bench/model", self.options.device)
                       for _ in range(min(4, wanted - len(milliseconds)))]  # fmt: skip
            for following in waiting:
                serving.kill()
                milliseconds.append(following.attach()["ms"])
                serving = following
        serving.kill()
        milliseconds.sort()
        self.note("kills", {
            "count": len(milliseconds), "median_ms": milliseconds[len(milliseconds) // 2],
            "max_ms": milliseconds[-1], "ms": [round(each, 2) for each in milliseconds],
        })  # fmt: skip

    def run(self) -> None:
        import gpushm

        client = gpushm.connect(os.environ["GPUSHM_SOCKET"])
        segment = self.make(client)
        for part in self.options.parts or ["attach", "safetensors", "cuda-ipc", "kills"]:
            getattr(self, part.replace("-", "_"))()
        segment.close()
        client.remove("bench/model")
        ratios = {
            f"{part} over attach": self.results[part]["best_ms"] / self.results["attach"]["best_ms"]
            for part in ("safetensors", "cuda-ipc")
            if part in self.results and "attach" in self.results
        }
        if {"attach", "cuda-ipc"} <= self.results.keys():
            again = {
                part: min(run["again_ms"] for run in self.results[part]["runs"])
                for part in ("attach", "cuda-ipc")
            }
            ratios["cuda-ipc over attach, again"] = again["cuda-ipc"] / again["attach"]
        self.note("ratios", ratios)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("--json", default="weights.json")
    arguments.add_argument("--gib", type=float, default=10)
    arguments.add_argument("--tensors", type=int, default=500)
    arguments.add_argument("--file")
    arguments.add_argument("--kills", type=int, default=100)
    arguments.add_argument("--device", default="0")
    arguments.add_argument("--role", help=argparse.SUPPRESS)
    arguments.add_argument("--name", help=argparse.SUPPRESS)
    arguments.add_argument("parts", nargs="*", choices=["attach", "safetensors", "cuda-ipc", "kills", []])
    options = arguments.parse_args()
    if options.role == "engine":
        engine(options.name, options.device)
    elif options.role == "file":
        reader_of_file(options.name, options.device)
    else:
        command = os.environ.get("GPUSHM_COMMAND") or shutil.which("gpushm") or sys.exit("no gpushm")
        with tempfile.TemporaryDirectory() as folder:
            os.environ["GPUSHM_SOCKET"] = f"{folder}/socket"
            read_end, write_end = os.pipe()
            broker = subprocess.Popen(
                [command, "serve", "--socket", f"{folder}/socket", "--ready-fd", str(write_end)],
                pass_fds=[write_end], stderr=subprocess.DEVNULL,
            )  # fmt: skip
            os.close(write_end)
            if os.read(read_end, 1) != b"\n":
                sys.exit("the broker did not start")
            try:
                Bench(options).run()
            finally:
                broker.terminate()
                broker.wait(20)


if __name__ == "__main__":
    main()
