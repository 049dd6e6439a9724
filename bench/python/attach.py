# SPDX-License-Identifier: Apache-2.0
"""How long a process takes to attach a model, compared with what the driver and PyTorch alone take for it.

    python3 bench/python/attach.py --json out.json [--gib 10] [--tensors 500] [--device 0|host]
        [--processes 5] [--again 10]

Each process has imported PyTorch and, on a GPU, created its context. It then attaches the same memory in
turns in two ways, until all tensors are PyTorch's; how long is compared for the first time in the process
and for the median of the following ones:

    gpushm   a new client, the segment, its table, the tensors; everything is dropped afterwards
    raw      a descriptor that is already here: import, address range, map, access (ctypes), one tensor of
             all bytes, and a view of it for each tensor; on the host, mmap of a memfd

After each turn, the addresses, types and shapes of all tensors, and the first element of each, are checked.
Needs the package, PyTorch, and the command gpushm (GPUSHM_COMMAND, or in PATH), which is started as the
broker.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from own_broker import broker

NAME = "bench/model"
ALIGNMENT = 256
COLUMNS = 4096
MICROSECONDS = 1e6


def entries_of(tensors: int, gib: float) -> dict[str, dict[str, Any]]:
    """Equal tensors of bfloat16."""
    rows = max(1, int(gib * (1 << 30) / tensors / (2 * COLUMNS)))
    size = rows * 2 * COLUMNS
    step = -(-size // ALIGNMENT) * ALIGNMENT
    return {
        f"model.layers.{i}.mlp.weight": {
            "dtype": "BF16", "shape": [rows, COLUMNS], "data_offsets": [i * step, i * step + size],
        } for i in range(tensors)
    }  # fmt: skip


class Watch:
    """Microseconds of the parts of one turn."""

    def __init__(self) -> None:
        self.parts: dict[str, float] = {}
        self.begin = self.at = time.perf_counter()

    def part(self, name: str) -> None:
        now = time.perf_counter()
        self.parts[name] = (now - self.at) * MICROSECONDS
        self.at = now

    def result(self) -> dict[str, Any]:
        return {"us": (self.at - self.begin) * MICROSECONDS, "of_which": self.parts}


# ---- the driver alone ----


class Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class Access(ctypes.Structure):
    _fields_ = (("location", Location), ("flags", ctypes.c_int))


class Driver:
    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")

    def __call__(self, name: str, *arguments: Any) -> None:
        status = getattr(self.library, name)(*arguments)
        if status != 0:
            raise RuntimeError(f"{name}: {status}")

    def export(self, address: int) -> int:
        """A descriptor of the physical memory at this address."""
        handle, number = ctypes.c_ulonglong(), ctypes.c_int()
        self("cuMemRetainAllocationHandle", ctypes.byref(handle), ctypes.c_void_p(address))
        self("cuMemExportToShareableHandle", ctypes.byref(number), handle, 1, ctypes.c_ulonglong(0))
        self("cuMemRelease", handle)
        return number.value


class RawMapping:
    def __init__(self, driver: Driver, device: int, fd: int, size: int, watch: Watch) -> None:
        self.driver, self.size = driver, size
        handle, self.address = ctypes.c_ulonglong(), ctypes.c_ulonglong()
        length = ctypes.c_size_t(size)
        driver("cuMemImportFromShareableHandle", ctypes.byref(handle), ctypes.c_void_p(fd), 1)
        watch.part("import")
        zero = ctypes.c_ulonglong(0)
        driver("cuMemAddressReserve", ctypes.byref(self.address), length, ctypes.c_size_t(0), zero, zero)
        driver("cuMemMap", self.address, length, ctypes.c_size_t(0), handle, zero)
        watch.part("map")
        wanted = Access(Location(1, device), 1)  # a device, for reading
        driver("cuMemSetAccess", self.address, length, ctypes.byref(wanted), ctypes.c_size_t(1))
        driver("cuMemRelease", handle)
        watch.part("access")

    def close(self) -> None:
        length = ctypes.c_size_t(self.size)
        self.driver("cuMemUnmap", self.address, length)
        self.driver("cuMemAddressFree", self.address, length)


class CudaBytes:
    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3, "strides": None,
        }  # fmt: skip


# ---- a process that attaches ----


class Engine:
    def __init__(self, options: argparse.Namespace) -> None:
        import torch

        self.torch = torch
        self.options = options
        self.is_gpu = options.device != "host"
        self.device = f"cuda:{options.device}" if self.is_gpu else "cpu"
        self.driver = Driver() if self.is_gpu else None
        if self.is_gpu:
            torch.zeros(1, device=self.device)
            torch.cuda.synchronize()
        import gpushm

        self.gpushm = gpushm
        self.entries = entries_of(options.tensors, options.gib)
        self.end = next(reversed(self.entries.values()))["data_offsets"][1]

    def check(self, tensors: dict[str, Any]) -> None:
        first = min(tensor.data_ptr() for tensor in tensors.values())
        assert list(tensors) == list(self.entries)
        for (name, entry), tensor in zip(self.entries.items(), tensors.values(), strict=True):
            assert tensor.data_ptr() == first + entry["data_offsets"][0], name
            assert list(tensor.shape) == entry["shape"], name
            assert tensor.dtype == self.torch.bfloat16, name
            assert str(tensor.device) == self.device, name
        bits = self.torch.stack([tensor[0, 0] for tensor in tensors.values()]).view(self.torch.int16)
        assert bits.tolist() == list(range(len(tensors)))

    def by_gpushm(self) -> dict[str, Any]:
        watch = Watch()
        client = self.gpushm.connect(os.environ["GPUSHM_SOCKET"], prefetch=[NAME])
        watch.part("connect")
        opened = self.gpushm.safe_open(NAME, "torch", client=client, timeout=60)
        watch.part("open")
        tensors = opened.get_tensors()
        watch.part("tensors")
        result = watch.result()
        self.check(tensors)
        opened.close()
        del tensors
        client.close()
        return result

    def raw(self, fd: int, size: int) -> dict[str, Any]:
        torch = self.torch
        watch = Watch()
        if self.driver is not None:
            mapping: Any = RawMapping(self.driver, int(self.options.device), fd, size, watch)
            content = torch.as_tensor(CudaBytes(mapping.address.value, self.end), device=self.device)
        else:
            mapping = mmap.mmap(fd, size)
            watch.part("map")
            content = torch.frombuffer(mapping, dtype=torch.uint8)
        tensors = {}
        for name, entry in self.entries.items():
            begin, end = entry["data_offsets"]
            tensors[name] = content[begin:end].view(torch.bfloat16).view(entry["shape"])
        watch.part("tensors")
        result = watch.result()
        self.check(tensors)
        del tensors, content
        mapping.close()
        return result

    def run(self) -> None:
        """For each message on the socket one turn, and its figures as a line of JSON."""
        with socket.socket(fileno=self.options.socket) as requests:
            print("ready", flush=True)
            while True:
                message, fds, _, _ = socket.recv_fds(requests, 16, 1)
                if not message:
                    return
                (size,) = struct.unpack("q", message)
                figures = self.raw(fds[0], size) if fds else self.by_gpushm()
                for fd in fds:
                    os.close(fd)
                print(json.dumps(figures), flush=True)


# ---- the process that has the model ----


class Attaching:
    """One new process."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--socket", str(theirs.fileno()), "--gib", str(options.gib),
             "--tensors", str(options.tensors), "--device", options.device],
            pass_fds=[theirs.fileno()], stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        theirs.close()
        assert self.line() == "ready\n"

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline() or sys.exit("an attaching process has failed")

    def turn(self, size: int, fd: int | None) -> dict[str, Any]:
        socket.send_fds(self.requests, [struct.pack("q", size)], [] if fd is None else [fd])
        result: dict[str, Any] = json.loads(self.line())
        return result

    def end(self) -> None:
        self.requests.close()
        self.process.wait(60)


def median(runs: list[dict[str, Any]]) -> dict[str, Any]:
    def of(value: Callable[[dict[str, Any]], float]) -> float:
        return round(statistics.median(value(run) for run in runs), 1)

    parts = runs[0]["of_which"]
    return {
        "us": of(lambda run: run["us"]),
        "best_us": round(min(run["us"] for run in runs), 1),
        "of_which": {part: of(lambda run, part=part: run["of_which"][part]) for part in parts},
    }


def make_model(client: Any, options: argparse.Namespace) -> Any:
    import gpushm

    entries = entries_of(options.tensors, options.gib)
    table = json.dumps(entries)
    segment = client.create(NAME, gpushm.tensors_size(table), device=options.device, lifetime="persistent")
    for i, entry in enumerate(entries.values()):
        segment.write(struct.pack("h", i), offset=entry["data_offsets"][0])
    segment.publish_tensors(table)
    return segment


def raw_descriptor(segment: Any, options: argparse.Namespace) -> tuple[int, int]:
    """Of the same memory, and its size; on the host of a copy."""
    if options.device != "host":
        granularity = 2 << 20
        return Driver().export(segment.view().data_ptr), -(-segment.size // granularity) * granularity
    fd = os.memfd_create("raw")
    os.ftruncate(fd, segment.size)
    with mmap.mmap(fd, segment.size) as copied:
        copied[:] = segment.read()
    return fd, segment.size


def measure(options: argparse.Namespace) -> dict[str, Any]:
    import gpushm

    client = gpushm.connect(os.environ["GPUSHM_SOCKET"])
    segment = make_model(client, options)
    fd, size = raw_descriptor(segment, options)
    runs: dict[str, dict[str, list[dict[str, Any]]]] = {"first": {}, "again": {}}
    for number in range(options.processes):
        one = Attaching(options)
        ways: list[tuple[str, int | None]] = [("gpushm", None), ("raw", fd)]
        for turn in range(1 + options.again):
            for way, descriptor in ways if (number + turn) % 2 == 0 else reversed(ways):
                figures = one.turn(size, descriptor)
                runs["again" if turn else "first"].setdefault(way, []).append(figures)
        one.end()
    segment.close()
    client.remove(NAME)
    results: dict[str, Any] = {
        "device": options.device, "gib": options.gib, "tensors": options.tensors,
        "processes": options.processes, "python": sys.version.split()[0],
    }  # fmt: skip
    for when, ways_run in runs.items():
        if ways_run:
            medians = {way: median(each) for way, each in ways_run.items()}
            driver = medians["raw"]["us"] - medians["raw"]["of_which"]["tensors"]
            results[when] = medians | {
                "ratio": round(medians["gpushm"]["us"] / medians["raw"]["us"], 2),
                "ratio_to_driver_alone": round(medians["gpushm"]["us"] / driver, 2),
            }
    return results


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("--json", default="attach.json")
    arguments.add_argument("--gib", type=float, default=10)
    arguments.add_argument("--tensors", type=int, default=500)
    arguments.add_argument("--device", default="0")
    arguments.add_argument("--processes", type=int, default=5)
    arguments.add_argument("--again", type=int, default=10)
    arguments.add_argument("--socket", type=int, help=argparse.SUPPRESS)
    options = arguments.parse_args()
    if options.socket is not None:
        Engine(options).run()
        return
    with broker():
        results = measure(options)
    Path(options.json).write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
