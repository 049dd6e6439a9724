# SPDX-License-Identifier: Apache-2.0
"""Element types, and what makes a framework's tensor of an array."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gpushm import _core

if TYPE_CHECKING:
    from gpushm._core import Array

#: Element types by their name in a table. F6_E2M3 and F6_E3M2 are types that no framework has.
DTYPES = {
    "BOOL": "bool",
    "F4": "float4_e2m1fn_x2",
    "U8": "uint8",
    "I8": "int8",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "I16": "int16",
    "U16": "uint16",
    "F16": "float16",
    "BF16": "bfloat16",
    "I32": "int32",
    "U32": "uint32",
    "F32": "float32",
    "C64": "complex64",
    "F64": "float64",
    "I64": "int64",
    "U64": "uint64",
    "C32": "complex32",
    "C128": "complex128",
}


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
