# SPDX-License-Identifier: Apache-2.0
"""Element types, extents, and what makes a framework's tensor of an array."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from gpushm import _core

if TYPE_CHECKING:
    from gpushm._core import Array

#: Element types by their name in a table. F6_E2M3 and F6_E3M2 are types that no framework has.
DTYPES = {in_table: name for name, in_table in _core.dtypes().items() if in_table is not None}


def extent(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> int:
    """Bytes from the first element to the end of the last one. ``strides``: in elements."""
    if 0 in shape:
        return 0
    last = sum((count - 1) * stride for count, stride in zip(shape, strides, strict=True))
    return (last + 1) * itemsize


def _to_jax(array: Array) -> Any:
    import jax

    return jax.dlpack.from_dlpack(array.unflagged())


def _to_numpy(array: Array) -> Any:
    from gpushm._interop import to_numpy

    return to_numpy(array)


def torch_table() -> Any:
    """PyTorch's table of C functions for DLPack; None before 2.10."""
    import torch

    return getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)


def to_torch(array: Array) -> Any:
    import torch

    table = torch_table()
    # What its table refuses, it does not release (2.11).
    if table is None or not hasattr(torch, array.dtype):
        return torch.from_dlpack(array)
    if array.__dlpack_device__()[0] != 1:
        torch.cuda.init()  # as from_dlpack does
    return _core.exchange(array, table)


def view_as(tensor: Any, name: str) -> Any:
    """The tensor as a type of PyTorch, which another process has named; unknown: as it is."""
    import torch

    wanted = getattr(torch, name, None)
    if not isinstance(wanted, torch.dtype) or name.startswith("q") or wanted == tensor.dtype:
        return tensor
    return tensor.view(wanted) if wanted.itemsize == tensor.dtype.itemsize else tensor


def _to_cupy(array: Array) -> Any:
    import cupy

    return cupy.from_dlpack(array)


_FRAMEWORKS: dict[str | None, Callable[[Array], Any]] = {
    None: lambda array: array,
    "numpy": _to_numpy,
    "jax": _to_jax,
    "torch": to_torch,
    "cupy": _to_cupy,
}
# As safetensors names them, too.
_ALIASES = {"np": "numpy", "pt": "torch", "pytorch": "torch", "flax": "jax"}


def converter(framework: str | None) -> Callable[[Array], Any]:
    """What makes a framework's tensor of an array. Raises ValueError for an unknown framework."""
    found = _FRAMEWORKS.get(_ALIASES.get(framework or "", framework))
    if found is None:
        known = ", ".join(f'"{each}"' for each in _FRAMEWORKS if each is not None)
        raise ValueError(f"framework is {known}, or None for gpushm.Array")
    return found
