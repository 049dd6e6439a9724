# SPDX-License-Identifier: Apache-2.0
"""Devices as the library names them, of what frameworks have for them."""

from __future__ import annotations

import operator
import sys
from typing import Any

__all__: list[str] = []

_ACCEPTED = (
    'a device is "auto", "host" or "cpu", an ordinal (1, "1", "cuda:1"), the UUID of a GPU or MIG '
    "instance, or a device of PyTorch, JAX, CuPy or cuda.core"
)


def device_text(device: Any) -> str:
    """The library's text for a device. Raises TypeError and ValueError for what is none."""
    if isinstance(device, str):
        if not device:
            raise ValueError(
                f"the device is an empty text, as of a variable that is not set: {_ACCEPTED}"
            )
        return str(_current()) if device == "cuda" else device
    if isinstance(device, bool):
        raise TypeError(f"{device} is not a device: {_ACCEPTED}")
    if hasattr(device, "__index__"):
        return _ordinal(operator.index(device))
    if isinstance(getattr(device, "type", None), str):  # torch.device
        if device.type == "cpu":
            return "host"
        if device.type == "cuda":
            return _ordinal(_current() if device.index is None else device.index)
        raise ValueError(f"{device!r} is not a GPU of CUDA and not the host: {_ACCEPTED}")
    if isinstance(getattr(device, "platform", None), str):  # jax.Device
        if device.platform == "cpu":
            return "host"
        if device.platform in ("gpu", "cuda"):
            local = getattr(device, "local_hardware_id", None)
            return _ordinal(device.id if local is None else local)
        raise ValueError(f"{device!r} is not a GPU of CUDA and not the host: {_ACCEPTED}")
    for attribute in ("device_id", "id"):  # cuda.core.Device, cupy.cuda.Device
        if type(device).__name__ == "Device" and isinstance(getattr(device, attribute, None), int):
            return _ordinal(getattr(device, attribute))
    raise TypeError(f"{type(device).__name__} is not a device: {_ACCEPTED}")


def _ordinal(number: int) -> str:
    if number < 0:
        raise ValueError(f"{number} is not an ordinal: {_ACCEPTED}")
    return str(number)


def _current() -> int:
    """PyTorch's current GPU; 0 before it uses any."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return 0
    return int(torch.cuda.current_device())
