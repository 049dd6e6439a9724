# SPDX-License-Identifier: Apache-2.0
"""A side car that keeps a model over restarts of its engine.

    python3 sidecar.py NAME [DEVICE [FRAMEWORK]]

It loads the model once and starts an engine. When the engine ends (this example kills it, three times), it starts
another one, which has the weights in milliseconds: nothing is read again, and on a GPU nothing is copied again.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def start_engine(name: str, framework: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, HERE / "engine.py", name, framework],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
    )  # fmt: skip


def line_of(engine: subprocess.Popen[str]) -> str:
    line = engine.stdout.readline().strip() if engine.stdout is not None else ""
    if not line:
        sys.exit(f"the engine has ended with status {engine.wait()}")
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", metavar="NAME", help="name of the model's segment")
    parser.add_argument("device", metavar="DEVICE", nargs="?", default="auto", help="host, a GPU, or auto (default)")
    parser.add_argument("framework", metavar="FRAMEWORK", nargs="?", default="numpy", choices=("numpy", "torch", "jax"),
                        help="numpy (default), torch or jax")  # fmt: skip
    given = parser.parse_args()
    subprocess.run([sys.executable, HERE / "loader.py", given.name, given.device], check=True)
    for life in range(4):
        with start_engine(given.name, given.framework) as engine:
            ready = line_of(engine)
            assert engine.stdin is not None
            engine.stdin.write("3 1 4 1 5\n")
            print(f"engine {life}: {ready}; after 3 1 4 1 5: {line_of(engine)}", flush=True)
            engine.kill()


if __name__ == "__main__":
    main()
