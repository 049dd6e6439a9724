# SPDX-License-Identifier: Apache-2.0
"""A small transformer, made on the spot: what the other examples share and run.

Its functions use operators and methods that NumPy, JAX and PyTorch have, so that an engine of any of them runs it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

WIDTH, HEADS, LAYERS, WORDS = 64, 4, 2, 256


def make_weights(seed: int = 18) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (random.standard_normal((rows, columns)) / math.sqrt(rows)).astype("float32")

    weights = {"embed": matrix(WORDS, WIDTH)}
    for i in range(LAYERS):
        for name in ("q", "k", "v", "o"):
            weights[f"layers.{i}.{name}"] = matrix(WIDTH, WIDTH)
        weights[f"layers.{i}.up"] = matrix(WIDTH, 4 * WIDTH)
        weights[f"layers.{i}.down"] = matrix(4 * WIDTH, WIDTH)
    return weights


def normalised(x: Any) -> Any:
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred * ((centred * centred).mean(axis=-1, keepdims=True) + 1e-5) ** -0.5


def forward(weights: dict[str, Any], words: list[int]) -> Any:
    """The scores of the next word at each place: words x WORDS."""
    x = weights["embed"][np.array(words)]
    count, size = len(words), WIDTH // HEADS
    for i in range(LAYERS):
        layer = {name: weights[f"layers.{i}.{name}"] for name in ("q", "k", "v", "o", "up", "down")}
        h = normalised(x)
        q, k, v = ((h @ layer[n]).reshape(count, HEADS, size).swapaxes(0, 1) for n in ("q", "k", "v"))
        odds = math.e ** ((q @ k.swapaxes(1, 2)) / math.sqrt(size))
        mixed = (odds / odds.sum(axis=-1, keepdims=True)) @ v
        x = x + mixed.swapaxes(0, 1).reshape(count, WIDTH) @ layer["o"]
        h = normalised(x) @ layer["up"]
        x = x + ((h > 0) * h) @ layer["down"]
    return normalised(x) @ weights["embed"].swapaxes(0, 1)
