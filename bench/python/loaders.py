# SPDX-License-Identifier: Apache-2.0
"""Loads of one model by several libraries, each in a process of its own; loads.py starts them.

python loaders.py LIBRARY DEVICE FILE...

Imports the library, creates the context of the GPU and writes a line of JSON. Then, for each line on
standard input, loads the files until all tensors exist, compares tensors with the files, frees
them, and writes a line. Standard output has these lines only. ``{"missing": WHY}``: it is not here.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: The distribution and the module of each library.
LIBRARIES = {
    "gpushm": ("gpushm", "gpushm"),
    "instanttensor": ("instanttensor", "instanttensor"),
    "fastsafetensors": ("fastsafetensors", "fastsafetensors"),
    "safetensors": ("safetensors", "safetensors"),
    "runai": ("runai-model-streamer", "runai_model_streamer"),
}
#: Tensors that are compared as a whole; of all others, both ends are.
WHOLE_TENSORS = 8
END_BYTES = 64


class WrongDataError(Exception):
    """A library has loaded something else than the files have."""


class Place:
    """A tensor of a file."""

    def __init__(self, path: str, first: int, entry: dict[str, Any]) -> None:
        begin, end = entry["data_offsets"]
        self.path, self.offset, self.size = path, first + begin, end - begin
        self.shape = list(entry["shape"])

    def read(self, begin: int, size: int) -> bytes:
        with open(self.path, "rb") as file:
            file.seek(self.offset + begin)
            return file.read(size)


def places_of(paths: list[str]) -> dict[str, Place]:
    """All tensors of safetensors files, by name."""
    result = {}
    for path in paths:
        with open(path, "rb") as file:
            header_bytes = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(header_bytes))
        header.pop("__metadata__", None)
        for name, entry in header.items():
            result[name] = Place(path, 8 + header_bytes, entry)
    return result


def bytes_of(tensor: Any, begin: int, size: int) -> bytes:
    """A part of a tensor of PyTorch or NumPy, counted in bytes."""
    if type(tensor).__module__.partition(".")[0] == "torch":
        import torch

        flat = tensor.reshape(-1).view(torch.uint8)[begin : begin + size]
        return bytes(flat.cpu().numpy())
    return bytes(tensor.reshape(-1).view("uint8")[begin : begin + size])


def compare(tensors: dict[str, Any], places: dict[str, Place], where: str) -> None:
    """Raises WrongDataError. ``where``: a part of the name of the device that all tensors are on."""
    if tensors.keys() != places.keys():
        raise WrongDataError(f"{len(tensors)} tensors, not {len(places)}, or of other names")
    names = list(places)
    step = max(1, (len(names) - 1) // (WHOLE_TENSORS - 1))
    whole = {*names[::step], names[-1]}
    for name, place in places.items():
        tensor = tensors[name]
        if list(tensor.shape) != place.shape or "float16" not in str(tensor.dtype):
            raise WrongDataError(f"{name}: {tensor.dtype} {list(tensor.shape)}, not {place.shape}")
        device = str(getattr(tensor, "device", "cpu"))
        if where not in device:
            raise WrongDataError(f"{name} is on {device}")
        parts = [(0, place.size)]
        if name not in whole:
            size = min(END_BYTES, place.size)
            parts = [(0, size), (place.size - size, size)]
        for begin, size in parts:
            if bytes_of(tensor, begin, size) != place.read(begin, size):
                raise WrongDataError(f"{name}: other contents than in {place.path}")


class Process:
    """What the libraries need of this process."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.is_host = device == "host"
        self.torch: Any = None
        try:
            import torch

            self.torch = torch
        except ImportError:
            if not self.is_host:
                raise
        self.where = "cpu" if self.is_host else f"cuda:{device}"
        if not self.is_host:
            self.torch.zeros(1, device=self.where)
            self.torch.cuda.synchronize()

    @property
    def framework(self) -> str:
        return "numpy" if self.torch is None else "pt"

    def finish(self) -> None:
        if not self.is_host:
            self.torch.cuda.synchronize()

    def free(self) -> None:
        if not self.is_host:
            self.torch.cuda.empty_cache()


# Each returns the tensors, the milliseconds of its parts, and what frees the memory after the
# tensors are gone.
Loaded = tuple[dict[str, Any], dict[str, float], Callable[[], None]]


def load_by_gpushm(process: Process, paths: list[str]) -> Loaded:
    import gpushm

    times = [time.perf_counter()]
    client = gpushm.connect(os.environ["GPUSHM_SOCKET"])
    times.append(time.perf_counter())
    segment = client.load_tensors(paths, "bench/loads", device=process.device)
    times.append(time.perf_counter())
    with gpushm.safe_open("bench/loads", process.framework, client=client) as opened:
        tensors = opened.get_tensors()
    times.append(time.perf_counter())
    parts = {
        part: round((times[i + 1] - times[i]) * 1e3, 2)
        for i, part in enumerate(("connect", "load", "tensors"))
    }

    def free() -> None:
        segment.close()
        client.remove("bench/loads")
        client.close()

    return tensors, parts, free


def load_by_instanttensor(process: Process, paths: list[str]) -> Loaded:
    from instanttensor import safe_open

    with safe_open(list(paths), framework="pt", device=process.where) as opened:
        return dict(opened.tensors()), {}, process.free


def load_by_fastsafetensors(process: Process, paths: list[str]) -> Loaded:
    from fastsafetensors import fastsafe_open

    with fastsafe_open(list(paths), framework="pt", device=process.where, nogds=True) as opened:
        names = opened.keys()
        return {name: opened.get_tensor(name) for name in names}, {}, process.free


def load_by_safetensors(process: Process, paths: list[str]) -> Loaded:
    result: dict[str, Any] = {}
    if process.torch is None:
        from safetensors.numpy import load_file as load_arrays

        for path in paths:
            result |= load_arrays(path)
    else:
        from safetensors.torch import load_file

        for path in paths:
            result |= load_file(path, device=process.where)
    return result, {}, process.free


def load_by_runai(process: Process, paths: list[str]) -> Loaded:
    from runai_model_streamer import SafetensorsStreamer

    with SafetensorsStreamer() as streamer:
        streamer.stream_files(list(paths), device=process.where)
        result = {name: tensor.to(process.where) for name, tensor in streamer.get_tensors()}
    return result, {}, process.free


LOADS = {
    "gpushm": load_by_gpushm,
    "instanttensor": load_by_instanttensor,
    "fastsafetensors": load_by_fastsafetensors,
    "safetensors": load_by_safetensors,
    "runai": load_by_runai,
}


def why_missing(library: str, device: str) -> str | None:
    """Imports it."""
    try:
        importlib.import_module(LIBRARIES[library][1])
        if device != "host" or library not in ("gpushm", "safetensors"):
            importlib.import_module("torch")
    except (ImportError, OSError) as why:
        return str(why) or type(why).__name__
    if library == "instanttensor" and device == "host":
        return "it loads into GPUs only"
    return None


def version_of(library: str) -> str:
    try:
        return importlib.metadata.version(LIBRARIES[library][0])
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def pinned_rate(process: Process) -> float:
    """GB/s of copies of 32 MiB from pinned memory, on two streams."""
    torch, step = process.torch, 32 << 20
    source = torch.empty(512 << 20, dtype=torch.uint8, pin_memory=True)
    target = torch.empty_like(source, device=process.where)
    streams = [torch.cuda.Stream(process.where) for _ in range(2)]
    best = 0.0
    for _ in range(5):
        started = time.perf_counter()
        for i in range(0, 8 * source.numel(), step):
            at = i % source.numel()
            with torch.cuda.stream(streams[i // step % 2]):
                target[at : at + step].copy_(source[at : at + step], non_blocking=True)
        process.finish()
        best = max(best, 8 * source.numel() / (time.perf_counter() - started) / 1e9)
    return best


def main() -> None:
    # Libraries may print to standard output.
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(line: dict[str, Any]) -> None:
        print(json.dumps(line), file=output, flush=True)

    library, device, *paths = sys.argv[1:]
    if library == "pinned":
        answer({"GBps": pinned_rate(Process(device))})
        return
    missing = why_missing(library, device)
    if missing is not None:
        answer({"missing": missing})
        return
    process = Process(device)
    places = places_of(paths)
    total = sum(Path(path).stat().st_size for path in paths)
    answer({"ready": version_of(library)})
    for _ in sys.stdin:
        started = time.perf_counter()
        tensors, parts, free = LOADS[library](process, paths)
        process.finish()
        seconds = time.perf_counter() - started
        compare(tensors, places, "cpu" if process.is_host else "cuda")
        tensors.clear()
        free()
        answer({"ms": seconds * 1e3, "GBps": total / seconds / 1e9, "of_which": parts})


if __name__ == "__main__":
    main()
