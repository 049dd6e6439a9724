# SPDX-License-Identifier: Apache-2.0
"""What a second process with the same model of transformers costs: memory, and time to load.

    python3 bench/python/second_process.py [--json out.json] [--mib 1024] [--folder /dev/shm]
        [--device cpu|cuda:0]

Two processes have loaded a small model, so that they have imported everything, and wait. The first loads
the model and reads every parameter, then the second. Once with `from_pretrained` alone, and once in
`gpushm.shared_weights`. For each: seconds of the load and of the first read, and the memory of both
processes together beyond what they had before, in units of the model's bytes: proportional set size (a
page that two have mapped counts half in each), resident set size, and anonymous memory, which is never
shared. The cost of the second process is the ratio of the proportional sizes with both and with the
first.

On the CPU, from_pretrained maps the files, so that processes share the pages of the file system's cache
as long as they have the type and the layout of the files. --dtype float32 loads another type than that of
the files (bfloat16): then each process has copies, also in shared_weights.

On a GPU, the memory is what the driver counts as used on the device: what a process has reserved for
PyTorch's cache belongs to it. No other program may use the GPU meanwhile.

The model is a Llama with random parameters, which this program makes in FOLDER. Needs the package,
PyTorch, transformers, and the command gpushm (GPUSHM_COMMAND, or in PATH). Exits with 1 if the
parameters differ between ways, or the ratio of shared_weights is above 1.05.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from own_broker import broker

LIMIT = 1.05
WAYS = ["from_pretrained", "shared_weights"]


def memory_of_process(pid: int) -> dict[str, int]:
    """Bytes by the kernel's names."""
    result = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, value = line.split()[:2]
        result[name.rstrip(":")] = int(value) << 10
    return result


def make_model(folder: str, mib: int, width: int = 1024) -> None:
    import torch
    import transformers

    vocabulary = 8 * width
    # Each layer has 4 matrices of the attention and 3 of the rest, in bfloat16.
    of_layer = (4 * width * width + 3 * width * 4 * width) * 2
    layers = max(1, ((mib << 20) - 2 * vocabulary * width * 2) // of_layer)
    config = transformers.LlamaConfig(
        hidden_size=width, intermediate_size=4 * width, num_hidden_layers=layers,
        num_attention_heads=8, num_key_value_heads=8, vocab_size=vocabulary, dtype="bfloat16",
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(folder, max_shard_size="400MB")


def serve(way: str, folder: str, dtype: str, device: str) -> None:
    """For each line on standard input one step: a line of JSON."""
    import contextlib

    import torch
    import transformers

    import gpushm

    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    client = gpushm.connect(os.environ["GPUSHM_SOCKET"])
    for name in ("small", "model"):
        began = time.perf_counter()
        with contextlib.ExitStack() as stack:
            if way == "shared_weights":
                stack.enter_context(
                    gpushm.shared_weights(f"w/{name}", device=device, client=client)
                )
            model = transformers.AutoModelForCausalLM.from_pretrained(
                f"{folder}/{name}", dtype=dtype, device_map=None if device == "cpu" else device
            )
        loaded = time.perf_counter()
        total = sum(
            int(each.view(torch.int16).sum(dtype=torch.int64)) for each in model.parameters()
        )
        row = {
            "load_s": round(loaded - began, 3),
            "read_s": round(time.perf_counter() - loaded, 3),
            "sum": total,
            "size": sum(each.nbytes for each in model.parameters()),
            "devices": sorted({str(each.device) for each in model.parameters()}),
        }
        if device != "cpu":
            torch.cuda.synchronize(device)
            free, total_memory = torch.cuda.mem_get_info(device)
            row["Used"] = total_memory - free
        print(json.dumps(row), flush=True)
        sys.stdin.readline()


class Child:
    def __init__(self, way: str, folder: str, dtype: str, device: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--role", way, "--folder", folder, "--dtype", dtype,
             "--device", device],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
        )  # fmt: skip
        self.started = self.line()

    def line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"a process has ended with status {self.process.wait()}")
        result: dict[str, Any] = json.loads(line)
        return result

    def step(self) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        return self.line()

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(60)


def measure(way: str, folder: str, dtype: str, device: str) -> dict[str, Any]:
    children = [Child(way, folder, dtype, device) for _ in range(2)]
    on_gpu = device != "cpu"
    names = ("Used",) if on_gpu else ("Pss", "Rss", "Anonymous")

    def memory(newest: dict[str, Any]) -> dict[str, int]:
        """Of both processes; on a GPU, of the device after the newest step."""
        if on_gpu:
            return {"Used": newest["Used"]}
        each = [memory_of_process(child.process.pid) for child in children]
        return {name: sum(part[name] for part in each) for name in names}

    before = memory(children[1].started)
    results, grown = [], []
    for each in children:
        results.append(each.step())
        now = memory(results[-1])
        grown.append({name: now[name] - before[name] for name in names})
    for each in children:
        each.end()
    if results[0]["sum"] != results[1]["sum"]:
        sys.exit(f"{way}: the processes have different parameters")
    if on_gpu and any(each["devices"] != [device] for each in results):
        sys.exit(f"{way}: parameters are on {results[0]['devices']}")
    size = results[0]["size"]
    return {
        "way": way,
        "device": device,
        "size": size,
        "sum": results[0]["sum"],
        "first": {"load_s": results[0]["load_s"], "read_s": results[0]["read_s"]},
        "second": {"load_s": results[1]["load_s"], "read_s": results[1]["read_s"]},
        "of_model_with_one": {name: round(grown[0][name] / size, 4) for name in names},
        "of_model_with_two": {name: round(grown[1][name] / size, 4) for name in names},
        "ratio": round(grown[1][names[0]] / grown[0][names[0]], 4),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json")
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--folder", default="/dev/shm")
    parser.add_argument("--dtype", default="auto", choices=["auto", "float32"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--role", choices=[*WAYS, "make"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.role == "make":
        make_model(f"{arguments.folder}/model", arguments.mib)
        make_model(f"{arguments.folder}/small", 1, 64)
        return 0
    if arguments.role:
        serve(arguments.role, arguments.folder, arguments.dtype, arguments.device)
        return 0
    rows = []
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder, broker():
        subprocess.run(
            [sys.executable, __file__, "--role", "make", "--folder", folder,
             "--mib", str(arguments.mib)],
            check=True, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        for way in WAYS:
            row = measure(way, folder, arguments.dtype, arguments.device)
            name = "Pss" if arguments.device == "cpu" else "Used"
            rows.append(row)
            print(
                f"{way:16} load {row['first']['load_s']:.2f} s, second process "
                f"{row['second']['load_s']:.2f} s; memory of both {row['of_model_with_two'][name]:.2f} "
                f"times the model ({row['of_model_with_one'][name]:.2f} with the first), "
                f"ratio {row['ratio']:.3f}",
                flush=True,
            )
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(rows, indent=1) + "\n")
    failed = [
        *(["different parameters"] if rows[0]["sum"] != rows[1]["sum"] else []),
        *([f"ratio {rows[1]['ratio']}"] if rows[1]["ratio"] > LIMIT else []),
    ]
    if failed and arguments.dtype == "auto":
        print("failed: " + ", ".join(failed), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
