# SPDX-License-Identifier: Apache-2.0
"""Makes a model, saves it as a safetensors file, and loads it into shared memory, where it stays.

    python3 loader.py NAME [DEVICE]

Then any number of engine.py run it, in other processes and containers, without a copy.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import gpushm
from safetensors.numpy import save_file
from transformer import make_weights


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", metavar="NAME", help="name of the model's segment")
    parser.add_argument("device", metavar="DEVICE", nargs="?", default="auto", help="host, a GPU, or auto (default)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        save_file(make_weights(), path)
        with gpushm.load_safetensors(path, given.name, device=given.device, progress=True) as segment:
            print(f"{given.name}: {segment.size} bytes on {segment.device}, {segment.lifetime}", flush=True)


if __name__ == "__main__":
    main()
