# SPDX-License-Identifier: Apache-2.0
"""How fast slices of matrices are loaded, compared with whole ones.

    python3 bench/python/slices.py --json out.json [--gib 1] [--ranks 8] [--device 0|host] [--folder /dev/shm]
        [--reading cached|direct] [--repetitions 5] [--threads N]

A model of matrices [8192, 8192] of bfloat16 is loaded whole, and one rank's part of it in three ways:

    rows      of each matrix one range of the file
    fused     three ranges of rows, as of queries, keys and values in one matrix
    columns   a run for each row

Of each the best load is reported (`cpu_ms`: the least time of all CPUs), and in host memory the first matrix
is compared with the file. Needs the package, NumPy, and the command gpushm (GPUSHM_COMMAND, or in PATH),
which is started as the broker.
"""

from __future__ import annotations

import argparse
import json
import os
import struct
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from own_broker import broker

SIZE = 8192
MATRIX_BYTES = 2 * SIZE * SIZE
NAME = "bench/slices"


def write_model(path: Path, matrices: int) -> None:
    header = {
        f"{i}": {
            "dtype": "BF16",
            "shape": [SIZE, SIZE],
            "data_offsets": [i * MATRIX_BYTES, (i + 1) * MATRIX_BYTES],
        }
        for i in range(matrices)
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    content = np.random.default_rng(38).integers(0, 1 << 16, (SIZE, SIZE), "uint16").tobytes()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _ in range(matrices):
            file.write(content)


def selections(ranks: int) -> dict[str, list[tuple[int, ...]]]:
    """Of one rank of at least two."""
    part = SIZE // ranks
    starts = (0, SIZE // 2, 3 * SIZE // 4)
    return {
        "whole": [],
        "rows": [(0, part, 2 * part)],
        "fused": [(0, start, start + part // 3) for start in starts],
        "columns": [(1, part, 2 * part)],
    }


def check(client: Any, path: Path, slices: list[tuple[int, ...]]) -> None:
    import gpushm

    with path.open("rb") as file:
        (header,) = struct.unpack("<Q", file.read(8))
    matrix = np.memmap(path, "uint16", "r", 8 + header, (SIZE, SIZE))
    parts = [matrix[:, begin:end] if dim == 1 else matrix[begin:end] for dim, begin, end in slices]
    wanted = np.concatenate(parts) if parts else matrix
    with gpushm.safe_open(NAME, client=client) as loaded:
        got = np.frombuffer(loaded.get_tensor("0").tobytes(), "uint16").reshape(wanted.shape)
    assert np.array_equal(got, wanted)


def measure(options: argparse.Namespace, path: Path) -> dict[str, Any]:
    import gpushm

    client = gpushm.connect(os.environ["GPUSHM_SOCKET"])
    matrices = max(1, int(options.gib * (1 << 30) / MATRIX_BYTES))
    write_model(path, matrices)
    results: dict[str, Any] = {
        "device": options.device, "gib": options.gib, "ranks": options.ranks, "reading": options.reading,
    }  # fmt: skip
    for way, slices in selections(options.ranks).items():
        seconds, cpu = [], []
        for number in range(options.repetitions):
            begin, cpu_begin = time.perf_counter(), time.process_time()
            segment = client.load_tensors(
                path, NAME, device=options.device, reading=options.reading, threads=options.threads,
                slices={"*": slices} if slices else None,
            )  # fmt: skip
            seconds.append(time.perf_counter() - begin)
            cpu.append(time.process_time() - cpu_begin)
            loaded = segment.size
            segment.close()
            if number == 0 and options.device == "host":
                check(client, path, slices)
            client.remove(NAME)
            time.sleep(0.2)
        rate = loaded / min(seconds) / 1e9
        results[way] = {
            "GBps": round(rate, 2), "ms": round(min(seconds) * 1e3, 1), "cpu_ms": round(min(cpu) * 1e3, 1),
        }  # fmt: skip
    return results


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("--json", default="slices.json")
    arguments.add_argument("--gib", type=float, default=1)
    arguments.add_argument("--ranks", type=int, default=8)
    arguments.add_argument("--device", default="host")
    arguments.add_argument("--folder", default="/dev/shm")
    arguments.add_argument("--reading", default="cached", choices=["cached", "direct"])
    arguments.add_argument("--repetitions", type=int, default=5)
    arguments.add_argument("--threads", type=int)
    options = arguments.parse_args()
    with broker(), tempfile.TemporaryDirectory(dir=options.folder) as folder:
        results = measure(options, Path(folder) / "model.safetensors")
    Path(options.json).write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results))


if __name__ == "__main__":
    main()
