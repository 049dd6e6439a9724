# SPDX-License-Identifier: Apache-2.0
"""Runs a model that is in shared memory: one line of words in, one word out.

    python3 engine.py NAME [FRAMEWORK]

It waits for the model if it comes first. Words are numbers from 0 to 255, with spaces between them.
"""

from __future__ import annotations

import argparse
import sys
import time

import gpushm
from transformer import forward


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", metavar="NAME", help="name of the model's segment")
    parser.add_argument("framework", metavar="FRAMEWORK", nargs="?", default="numpy", choices=("numpy", "torch", "jax"),
                        help="numpy (default), torch or jax")  # fmt: skip
    given = parser.parse_args()
    started = time.perf_counter()
    with gpushm.safe_open(given.name, given.framework, timeout=60) as model:
        weights = model.get_tensors()
    milliseconds = (time.perf_counter() - started) * 1e3
    print(f"ready: {len(weights)} tensors in {milliseconds:.1f} ms, without a copy", flush=True)
    for line in sys.stdin:
        scores = forward(weights, [int(word) for word in line.split()])
        print(int(scores[-1].argmax()), flush=True)


if __name__ == "__main__":
    main()
