# SPDX-License-Identifier: Apache-2.0
"""Structures of arrays in one segment (docs/python.md, "The format of put")."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from gpushm import _core
from gpushm._errors import ErrorCode, from_parts

if TYPE_CHECKING:
    from gpushm._core import Array, Client, Segment

# Vectorised kernels, DLPack and JAX (64) are content with it.
_ALIGNMENT = 256
_MAX_METADATA = 65536
_FORMAT = "tree"
_VERSION = 1
_PLAIN = (str, int, float, bool, type(None))


class _Writer:
    """Collects the arrays of a structure, each once, and their places."""

    def __init__(self) -> None:
        self.tensors: list[dict[str, Any]] = []
        self.sources: list[tuple[Any, Array | None]] = []
        self.end = 0
        self._known: dict[tuple[Any, ...], int] = {}

    def node(self, value: Any) -> Any:
        if isinstance(value, dict):
            for key in value:
                if type(key) not in (str, int):
                    raise TypeError(f"put: the key {key!r} is not a str or an int")
            return {"dict": [[key, self.node(each)] for key, each in value.items()]}
        if type(value) in (list, tuple):
            return {type(value).__name__: [self.node(each) for each in value]}
        if type(value) in _PLAIN:
            return {"value": value}
        return {"array": self._add(value)}

    def _add(self, source: Any) -> int:
        try:
            array = _core.from_dlpack(source)
        except BufferError:  # a type of ml_dtypes, which NumPy does not export
            array = None
        if array is None:
            if not hasattr(source, "dtype") or not source.flags.c_contiguous:
                raise TypeError(
                    f"put: {type(source).__name__} of {getattr(source, 'dtype', '?')} has no "
                    "DLPack tensor (make a contiguous array of a type that gpushm knows)"
                )
            data, dtype, shape = source.ctypes.data, source.dtype.name, list(source.shape)
            strides = None
        else:
            if array.__dlpack_device__()[0] != 1:
                raise TypeError(
                    "put: a tensor is on a GPU (create a segment there, and copy the tensor with its "
                    "library into from_dlpack of a view)"
                )
            data, dtype, shape = array.data_ptr, array.dtype, list(array.shape)
            strides = array.strides
        # Tied weights: one tensor under several names.
        key = (data, dtype, tuple(shape), strides)
        if data and key in self._known:
            return self._known[key]
        index = self._known[key] = len(self.tensors)
        size = source.nbytes if array is None else array.nbytes
        self.tensors.append({"dtype": dtype, "shape": shape, "offset": self.end})
        self.sources.append((source, array))
        self.end += -(-size // _ALIGNMENT) * _ALIGNMENT
        return index


def put(client: Client, name: str, tree: Any, device: str, lifetime: str) -> Segment:
    writer = _Writer()
    table = {"tree": writer.node(tree), "tensors": writer.tensors}
    head: dict[str, Any] = {"gpushm": _FORMAT, "version": _VERSION}
    size = max(writer.end, _ALIGNMENT)
    metadata = json.dumps(head | table, separators=(",", ":"), allow_nan=False).encode()
    tail = b""
    if len(metadata) > _MAX_METADATA:
        tail = json.dumps(table, separators=(",", ":"), allow_nan=False).encode()
        head["table"] = [size, len(tail)]
        metadata = json.dumps(head, separators=(",", ":")).encode()
    segment = client.create(name, size + len(tail), device=device, lifetime=lifetime)
    try:
        for entry, (source, array) in zip(writer.tensors, writer.sources, strict=True):
            into = segment.view(entry["dtype"], entry["shape"], offset=entry["offset"])
            if array is None or array.contiguous:
                into.copy_from(source if array is None else array)
            else:
                into.copy_from(array.tobytes())
        if tail:
            segment.write(tail, size)
        segment.publish(metadata)
    except BaseException:
        client.remove(name)
        segment.close()
        raise
    return segment


def _to_jax(array: Array) -> Any:
    import jax

    return jax.dlpack.from_dlpack(array.unflagged())


def _to_numpy(array: Array) -> Any:
    from gpushm._interop import to_numpy

    return to_numpy(array)


def _to_torch(array: Array) -> Any:
    import torch

    return torch.from_dlpack(array)


def _to_cupy(array: Array) -> Any:
    import cupy

    return cupy.from_dlpack(array)


_FRAMEWORKS: dict[str | None, Callable[[Array], Any]] = {
    None: lambda array: array,
    "numpy": _to_numpy,
    "jax": _to_jax,
    "torch": _to_torch,
    "cupy": _to_cupy,
}


def get(
    client: Client,
    name: str,
    framework: str | None,
    access: str,
    timeout: float | None,
    device: str | None,
) -> Any:
    convert = _FRAMEWORKS.get(framework)
    if convert is None:
        known = ", ".join(f'"{each}"' for each in _FRAMEWORKS if each is not None)
        raise ValueError(f"framework is {known}, or None for gpushm.Array")
    with client.open(name, access=access, timeout=timeout, device=device) as segment:
        table = _read_table(segment)
        try:
            arrays = [
                convert(segment.view(entry["dtype"], entry["shape"], offset=entry["offset"]))
                for entry in table["tensors"]
            ]
            return _build(table["tree"], arrays)
        except (KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
            _refuse(name, f"its table is not valid ({type(error).__name__}: {error})")


def _read_table(segment: Segment) -> dict[str, Any]:
    try:
        head = json.loads(segment.metadata)
        if head["gpushm"] != _FORMAT:
            raise ValueError
    except (ValueError, TypeError, KeyError, RecursionError):
        _refuse(segment.name, "it has no table of tensors", "open() it")
    if head.get("version") != _VERSION:
        _refuse(segment.name, f"its table has version {head.get('version')!r}")
    try:
        if "table" in head:
            offset, size = head["table"]
            head |= json.loads(segment.read(offset, size))
        return dict(head)
    except (ValueError, TypeError, RecursionError) as error:
        _refuse(segment.name, f"its table is not valid ({type(error).__name__}: {error})")


def _refuse(name: str, cause: str, next_step: str = "put() it again") -> NoReturn:
    code = int(ErrorCode.INVALID_ARGUMENT)
    raise from_parts(code, "get", name, cause, next_step, f'get "{name}": {cause} ({next_step})')


def _build(node: Any, arrays: list[Any]) -> Any:
    ((kind, content),) = node.items()
    if kind == "dict":
        return {key: _build(each, arrays) for key, each in content}
    if kind == "list":
        return [_build(each, arrays) for each in content]
    if kind == "tuple":
        return tuple(_build(each, arrays) for each in content)
    if kind == "array":
        if content < 0:
            raise IndexError(content)
        return arrays[content]
    if kind == "value":
        return content
    raise KeyError(kind)
