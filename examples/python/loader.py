# SPDX-License-Identifier: Apache-2.0
"""Makes a model, saves it as a safetensors file, and loads it into shared memory, where it stays.

    python3 loader.py NAME [DEVICE]     # DEVICE: "host", a GPU, or "auto"

Then any number of engine.py run it, in other processes and containers, without a copy.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import gpushm
from safetensors.numpy import save_file
from transformer import make_weights


def main() -> None:
    name, device = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "auto"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        save_file(make_weights(), path)
        with gpushm.load_safetensors(path, name, device=device, progress=True) as segment:
            print(f"{name}: {segment.size} bytes on {segment.device}, {segment.lifetime}", flush=True)


if __name__ == "__main__":
    main()
