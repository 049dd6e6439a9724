# SPDX-License-Identifier: Apache-2.0
"""Runs a model that is in shared memory: one line of words in, one word out.

    python3 engine.py NAME [FRAMEWORK]     # "numpy", "torch" or "jax"

It waits for the model if it comes first. Words are numbers from 0 to 255, with spaces between them.
"""

from __future__ import annotations

import sys
import time

import gpushm
from transformer import forward


def main() -> None:
    name, framework = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "numpy"
    started = time.perf_counter()
    with gpushm.safe_open(name, framework, timeout=60) as model:
        weights = model.get_tensors()
    milliseconds = (time.perf_counter() - started) * 1e3
    print(f"ready: {len(weights)} tensors in {milliseconds:.1f} ms, without a copy", flush=True)
    for line in sys.stdin:
        scores = forward(weights, [int(word) for word in line.split()])
        print(int(scores[-1].argmax()), flush=True)


if __name__ == "__main__":
    main()
