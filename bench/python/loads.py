# SPDX-License-Identifier: Apache-2.0
"""How long it takes to load a model, beside other libraries, and to attach one that is loaded.

    python3 bench/python/loads.py --json out.json [--gib 10] [--tensors 500] [--files 1]
        [--folder /dev/shm] [--repetitions 4] [--libraries gpushm,instanttensor,...] [--kills 100]
        [--pause 1] [--device 0|host] [--dry] [part ...]

Parts, of which "loads" and "attach" run by default; each writes its figures at once:

    loads        gpushm, InstantTensor, fastsafetensors, safetensors and Run:ai's streamer load the
                 same files from FOLDER (a tmpfs: needs GIB of memory there), in turns, each in new
                 processes, twice: the first load of a process, and again. Tensors are compared with
                 the files after each load. What is not installed is "missing", and why
    attach       a new process opens a published model by safe_open and builds all tensors; the GPU
                 memory that it takes beyond its context
    cuda-ipc     torch.multiprocessing sends the same state dict to a new process (CUDA IPC)
    kills        an engine is killed with SIGKILL; a new process attaches

Times are of processes that have imported PyTorch and the library and, on a GPU, created their
context. --dry: checks the arguments, and reports which libraries are here. Needs the package,
PyTorch (NumPy is enough for "loads" with --device host), and the command gpushm (GPUSHM_COMMAND, or
in PATH), which is started as the broker. Exits with 1 if a load has failed or its data was wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from loaders import LIBRARIES
from own_broker import broker

PARTS = ["loads", "attach", "cuda-ipc", "kills"]

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


@contextlib.contextmanager
def write_model(folder: Path, tensors: int, gib: float, files: int) -> Iterator[list[str]]:
    """The paths of safetensors files of tensors with different contents, which are removed later."""
    columns = 4096
    rows = max(1, int(gib * (1 << 30) / tensors / (2 * columns)))
    size = 2 * columns * rows
    block = os.urandom(min(size, 64 << 20) + 2 * tensors)
    paths = [folder / f"gpushm-bench-{i}.safetensors" for i in range(files)]
    try:
        for number, path in enumerate(paths):
            mine = range(number, tensors, files)
            header = json.dumps({
                f"layers.{i}.weight": {
                    "dtype": "F16", "shape": [rows, columns], "data_offsets": [at * size, (at + 1) * size],
                }
                for at, i in enumerate(mine)
            })  # fmt: skip
            text = header.encode()
            text += b" " * (-len(text) % 8)
            with open(path, "wb") as file:
                file.write(len(text).to_bytes(8, "little") + text)
                for i in mine:
                    own = memoryview(block)[2 * i : 2 * i + min(size, 64 << 20)]
                    for at in range(0, size, len(own)):
                        file.write(own[: size - at])
        yield [str(path) for path in paths]
    finally:
        for path in paths:
            path.unlink(missing_ok=True)


class Loader:
    """A process of loaders.py."""

    def __init__(self, library: str, device: str, paths: list[str]) -> None:
        self.library = library
        self.errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("loaders.py")), library, device, *paths],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True, bufsize=1,
        )  # fmt: skip

    def answer(self) -> dict[str, Any]:
        """The next line; {"failed": WHY} if it has ended instead."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if line:
            result: dict[str, Any] = json.loads(line)
            return result
        status = self.process.wait()
        self.errors.seek(0)
        errors = self.errors.read().strip().splitlines()
        return {"failed": errors[-1] if errors else f"it has ended with status {status}"}

    def load(self) -> dict[str, Any]:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the answer says why
            self.process.stdin.write("\n")
        return self.answer()

    def end(self) -> None:
        """Its memory and its context are freed when this returns."""
        self.process.kill()
        self.process.communicate()


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    rates = {"first": "GBps", "again": "again_GBps"}
    return {
        name: {
            "best_GBps": max(run[key] for run in runs),
            "median_GBps": statistics.median(run[key] for run in runs),
        }
        for name, key in rates.items()
    } | {"runs": runs}


def ratios_of(libraries: dict[str, Any], pinned: float | None) -> dict[str, float]:
    """Of the rates of gpushm to those of the others, and to that of copies from pinned memory."""
    result: dict[str, float] = {}
    own = libraries.get("gpushm", {})
    if "first" not in own:
        return result
    for name, figures in libraries.items():
        if name == "gpushm" or "first" not in figures:
            continue
        for when in ("first", "again"):
            for kind in ("best", "median"):
                rate = figures[when][f"{kind}_GBps"]
                result[f"{name}, {when}, {kind}"] = own[when][f"{kind}_GBps"] / rate
    if pinned is not None:
        for when in ("first", "again"):
            result[f"pinned memory, {when}, best"] = own[when]["best_GBps"] / pinned
    return result


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

    def loads(self) -> bool:
        """Whether no load has failed."""
        options = self.options
        figures: dict[str, Any] = {}
        pinned = None
        if options.device != "host":
            one = Loader("pinned", options.device, [])
            pinned = one.answer().get("GBps")
            one.end()
        runs: dict[str, list[dict[str, Any]]] = {}
        folder = Path(options.folder)
        with write_model(folder, options.tensors, options.gib, options.files) as paths:
            for turn in range(options.repetitions):
                names = [name for name in options.libraries if name not in figures]
                names = names[turn % len(names) :] + names[: turn % len(names)] if names else []
                # All of a turn start at once, because the import of PyTorch takes seconds.
                started = [Loader(name, options.device, paths) for name in names]
                try:
                    for each in started:
                        begun = each.answer()
                        if "ready" not in begun:
                            figures[each.library] = begun
                            print(each.library, json.dumps(begun), flush=True)
                    for each in started:
                        if each.library not in figures:
                            self.load_twice(each, figures, runs)
                        each.end()
                finally:
                    for each in started:
                        each.end()
        for name, done in runs.items():
            if name not in figures:
                figures[name] = summary(done)
        figures = {name: figures[name] for name in options.libraries}
        self.note("ratios of rates", ratios_of(figures, pinned))
        self.note("loads", {"pinned_GBps": pinned, "files": options.files, "libraries": figures})
        return not any("failed" in each for each in figures.values())

    def load_twice(
        self, loader: Loader, figures: dict[str, Any], runs: dict[str, list[dict[str, Any]]]
    ) -> None:
        """The first load of a process, and another one. A failure is noted in `figures`."""
        first = loader.load()
        time.sleep(self.options.pause)  # the driver clears memory that was freed
        again = loader.load() if "failed" not in first else first
        if "failed" in again:
            figures[loader.library] = again
        else:
            run = first | {"again_ms": again["ms"], "again_GBps": again["GBps"]}
            runs.setdefault(loader.library, []).append(run)
        print(loader.library, json.dumps(figures.get(loader.library) or run), flush=True)
        loader.end()
        time.sleep(self.options.pause)

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
        wanted = self.options.kills
        milliseconds: list[float] = []
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

    def run(self) -> bool:
        """Whether no load has failed."""
        import gpushm

        others = [part for part in self.options.parts if part != "loads"]
        is_right = self.loads() if "loads" in self.options.parts else True
        if not others:
            return is_right
        client = gpushm.connect(os.environ["GPUSHM_SOCKET"])
        segment = self.make(client)
        for part in others:
            getattr(self, part.replace("-", "_"))()
        segment.close()
        client.remove("bench/model")
        if {"attach", "cuda-ipc"} <= self.results.keys():
            self.note("cuda-ipc over attach", {
                "best": self.results["cuda-ipc"]["best_ms"] / self.results["attach"]["best_ms"],
                "again": min(run["again_ms"] for run in self.results["cuda-ipc"]["runs"])
                / min(run["again_ms"] for run in self.results["attach"]["runs"]),
            })  # fmt: skip
        return is_right


def libraries_here(options: argparse.Namespace) -> dict[str, Any]:
    """What each would answer before its first load; it creates a context."""
    result = {}
    for name in options.libraries:
        one = Loader(name, options.device, [])
        result[name] = one.answer()
        one.end()
    return result


def parse_arguments() -> argparse.Namespace:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    arguments.add_argument("--json", default="loads.json")
    arguments.add_argument("--gib", type=float, default=10)
    arguments.add_argument("--tensors", type=int, default=500)
    arguments.add_argument("--files", type=int, default=1)
    arguments.add_argument("--folder", default="/dev/shm")
    arguments.add_argument("--repetitions", type=int, default=4)
    arguments.add_argument("--libraries", default=",".join(LIBRARIES))
    arguments.add_argument("--pause", type=float, default=1.0)
    arguments.add_argument("--kills", type=int, default=100)
    arguments.add_argument("--device", default="0")
    arguments.add_argument("--dry", action="store_true")
    arguments.add_argument("--role", help=argparse.SUPPRESS)
    arguments.add_argument("--name", help=argparse.SUPPRESS)
    arguments.add_argument("parts", nargs="*")
    options = arguments.parse_args()
    options.libraries = options.libraries.split(",")
    options.parts = options.parts or ["loads", "attach"]
    if unknown := {*options.parts} - {*PARTS}:
        arguments.error(f"no such part: {', '.join(sorted(unknown))}")
    if unknown := {*options.libraries} - {*LIBRARIES}:
        arguments.error(f"no such library: {', '.join(sorted(unknown))}")
    if not 1 <= options.files <= options.tensors or options.repetitions < 1 or options.gib <= 0:
        arguments.error("at least one repetition, and one tensor for each file")
    if not Path(options.folder).is_dir():
        arguments.error(f"{options.folder} is not a folder")
    return options


def main() -> None:
    options = parse_arguments()
    if options.role == "engine":
        engine(options.name, options.device)
        return
    if options.dry:
        print(json.dumps({"parts": options.parts, "libraries": libraries_here(options)}))
        return
    with broker():
        is_right = Bench(options).run()
    if not is_right:
        sys.exit("a load has failed, or its data was wrong")


if __name__ == "__main__":
    main()
