# SPDX-License-Identifier: Apache-2.0
"""Methods of Array that are written in Python, and :func:`array`."""

from __future__ import annotations

import math
import operator
import os
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpushm import _core
from gpushm._frameworks import converter

if TYPE_CHECKING:
    from gpushm._core import Array, Client
    from gpushm._types import Device, Lifetime

__all__ = ["array"]


def array(
    shape: int | Sequence[int],
    dtype: object = "float32",
    *,
    name: str | None = None,
    device: Device = "auto",
    lifetime: Lifetime = "leased",
    replace: bool = False,
    client: Client | None = None,
) -> Array:
    """Create a shared array of zeros, and publish it: the segment lives as long as its arrays.

    Other processes get it by ``client.get(name)``, with ``access="read-write"`` to write to it, or
    as an argument (:class:`SharedTensor`). ``name``: None chooses a new one. ``device``,
    ``lifetime``: as :meth:`Client.create`. ``replace``: as :meth:`Client.put`. ``client``: None
    uses one connection of the process, made as :func:`connect` without arguments does.

    Raises TypeError and ValueError for a dtype or a shape, and as :meth:`Client.create`.
    """
    from gpushm import _shared, _tree

    name = name if name is not None else f"array/{os.getpid()}-{secrets.token_hex(4)}"
    owner = client if client is not None else _shared.default_client()
    return _tree.create_array(owner, name, _sizes((shape,)), dtype, device, lifetime, replace)


def to(framework: str, array: Array) -> Any:
    return converter(framework)(array)


def item(array: Array) -> Any:
    if array.size != 1:
        raise ValueError(f"an array of {array.size} elements is not one number (index it first)")
    import numpy

    from gpushm._interop import numpy_dtype

    return numpy.frombuffer(array.tobytes(), numpy_dtype(array.dtype))[0].item()


def part(array: Array, index: Any) -> Array:
    given = index if isinstance(index, tuple) else (index,)
    count = sum(each is not None and each is not Ellipsis for each in given)
    ellipses = sum(each is Ellipsis for each in given)
    if ellipses > 1:
        raise IndexError("an index has one ... at most")
    if count > array.ndim:
        raise IndexError(f"{count} indices of an array of {array.ndim} dimensions")
    if not ellipses:
        given = (*given, Ellipsis)
    shape: list[int] = []
    strides: list[int] = []
    offset, dimension = 0, 0
    for each in given:
        if each is Ellipsis:
            for _ in range(array.ndim - count):
                shape.append(array.shape[dimension])
                strides.append(array.strides[dimension])
                dimension += 1
            continue
        if each is None:
            shape.append(1)
            strides.append(1)
            continue
        size, stride = array.shape[dimension], array.strides[dimension]
        if isinstance(each, slice):
            chosen = range(size)[each]
            if chosen.step < 1:
                raise IndexError(
                    "a slice of a gpushm.Array has a positive step (use numpy() or torch())"
                )
            offset += chosen.start * stride if chosen else 0
            shape.append(len(chosen))
            strides.append(stride * chosen.step)
        else:
            offset += _position(each, size, dimension) * stride
        dimension += 1
    return _core.rearrange(array, shape, strides, offset if 0 not in shape else 0)


def _position(index: Any, size: int, dimension: int) -> int:
    if isinstance(index, bool) or not hasattr(index, "__index__"):
        raise IndexError(
            f"{type(index).__name__} is not an index of a gpushm.Array: integers, slices, None and "
            "... are (use numpy() or torch())"
        )
    number = operator.index(index)
    if not -size <= number < size:
        raise IndexError(f"index {number} of dimension {dimension}, which has {size}")
    return number % size


def set_part(array: Array, index: Any, value: Any) -> None:
    if array.readonly:
        raise ValueError('the array is mapped for reading only (open it with access="read-write")')
    if array.__dlpack_device__()[0] == 1:
        array.numpy()[index] = value
    else:
        part(array, index).copy_from(value)


def _sizes(shape: tuple[Any, ...]) -> list[int]:
    if len(shape) == 1 and not hasattr(shape[0], "__index__"):
        shape = tuple(shape[0])
    return [operator.index(each) for each in shape]


def reshape(array: Array, shape: tuple[Any, ...]) -> Array:
    wanted = _sizes(shape)
    if wanted.count(-1) == 1:
        others = -math.prod(wanted)
        if others > 0 and array.size % others == 0:
            wanted[wanted.index(-1)] = array.size // others
    if any(each < 0 for each in wanted) or math.prod(wanted) != array.size:
        raise ValueError(f"an array of shape {array.shape} has no shape {tuple(_sizes(shape))}")
    if not array.contiguous:
        raise ValueError("an array that is not contiguous has no other shape without a copy")
    strides = [math.prod(wanted[i + 1 :]) for i in range(len(wanted))]
    return _core.rearrange(array, wanted, strides, 0)
