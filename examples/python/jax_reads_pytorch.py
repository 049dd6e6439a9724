# SPDX-License-Identifier: Apache-2.0
"""JAX reads what PyTorch wrote: two processes, two frameworks, one copy of the weights.

    python3 jax_reads_pytorch.py [DEVICE]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

import gpushm


def writer(device: str) -> None:
    import torch

    client = gpushm.connect()
    layer = torch.nn.Linear(8, 4)
    with client.put("example/linear", layer.state_dict(), device=device, lifetime="leased"):
        with torch.no_grad():
            print("PyTorch:", round(float(layer(torch.ones(8)).sum()), 4), flush=True)
        # A process of its own: a framework's GPU memory and threads do not mix with another's.
        subprocess.run([sys.executable, __file__, "--reader"], check=True)


def reader() -> None:
    # JAX takes most of a GPU's memory at its first use, unless it is said not to.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax.numpy as jnp

    weights = gpushm.connect().get("example/linear", "jax", timeout=10)
    result = jnp.ones(8) @ weights["weight"].T + weights["bias"]
    print("JAX:    ", round(float(result.sum()), 4), "on", weights["weight"].device.platform, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("device", metavar="DEVICE", nargs="?", default="auto", help="host, a GPU, or auto (default)")
    parser.add_argument("--reader", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.reader:
        reader()
    else:
        writer(given.device)
