# SPDX-License-Identifier: Apache-2.0
"""Structures of arrays in one segment (docs/python.md, "The format of put")."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from gpushm import _core
from gpushm._tensors import DTYPES, Table, converter, refuse

if TYPE_CHECKING:
    from gpushm._core import Array, Client, Segment

# Of the first byte of each tensor.
_ALIGNMENT = 256
#: The entry of "__metadata__" with a structure that is not one dict of arrays.
_TREE = "gpushm.tree"
_PLAIN = (str, int, float, bool, type(None))
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
#: Types of one byte that the table has no name for.
_BYTES = ("float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float4_e2m1fn_x2")


class _Writer:
    """Collects the arrays of a structure, each once, with their names and places."""

    def __init__(self) -> None:
        self.entries: dict[str, dict[str, Any]] = {}
        #: What is copied: the source, the array of it, and the entry of the first name.
        self.sources: list[tuple[Any, Array | None, str, list[int], int]] = []
        self._end = 0
        self._known: dict[tuple[Any, ...], dict[str, Any]] = {}

    def table(self, tree: Any) -> str:
        node = self.node(tree, "")
        table: dict[str, Any] = self.entries
        if node != {"dict": [[name, {"array": name}] for name in self.entries]}:
            text = json.dumps(node, separators=(",", ":"), allow_nan=False)
            table = {"__metadata__": {_TREE: text}} | table
        return json.dumps(table, separators=(",", ":"))

    def node(self, value: Any, path: str) -> Any:
        if isinstance(value, dict):
            for key in value:
                if type(key) not in (str, int):
                    raise TypeError(f"put: the key {key!r} is not a str or an int")
            return {"dict": [[key, self._below(path, key, value[key])] for key in value]}
        if type(value) in (list, tuple):
            nodes = [self._below(path, i, each) for i, each in enumerate(value)]
            return {type(value).__name__: nodes}
        if type(value) in _PLAIN:
            return {"value": value}
        entry = self._add(value)
        name, number = path, 1
        while name in self.entries or name == "__metadata__":
            number += 1
            name = f"{path}~{number}"
        self.entries[name] = entry
        return {"array": name}

    def _below(self, path: str, key: str | int, value: Any) -> Any:
        return self.node(value, f"{path}.{key}" if path else str(key))

    def _add(self, source: Any) -> dict[str, Any]:
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
        size = source.nbytes if array is None else array.nbytes
        entry = _describe(dtype, shape) | {"data_offsets": [self._end, self._end + size]}
        self._known[key] = entry
        self.sources.append((source, array, dtype, shape, self._end))
        self._end += -(-size // _ALIGNMENT) * _ALIGNMENT
        return entry


def _describe(dtype: str, shape: list[int]) -> dict[str, Any]:
    if dtype == "float4_e2m1fn_x2" and shape:
        return {"dtype": "F4", "shape": [*shape[:-1], 2 * shape[-1]]}
    if dtype in _NAMES and dtype != "float4_e2m1fn_x2":
        return {"dtype": _NAMES[dtype], "shape": shape}
    if dtype in _BYTES:
        return {"dtype": "U8", "shape": shape, "framework_dtype": dtype}
    raise TypeError(f"put: gpushm has no dtype {dtype}")


def put(client: Client, name: str, tree: Any, device: str, lifetime: str) -> Segment:
    writer = _Writer()
    table = writer.table(tree)
    segment = client.create(name, _core.tensors_size(table), device=device, lifetime=lifetime)
    try:
        for source, array, dtype, shape, offset in writer.sources:
            into = segment.view(dtype, shape, offset=offset)
            if array is None or array.contiguous:
                into.copy_from(source if array is None else array)
            else:
                into.copy_from(array.tobytes())
        segment.publish_tensors(table)
    except BaseException:
        client.remove(name)
        segment.close()
        raise
    return segment


def get(
    client: Client,
    name: str,
    framework: str | None,
    access: str,
    timeout: float | None,
    device: str | None,
) -> Any:
    convert = converter(framework)
    segment = client.open_tensors(name, device=device, timeout=timeout)
    if access != "read":
        with segment:
            segment = client.open(name, access=access, device=device)
    with segment:
        return _Reader(Table(segment), convert).read()


class _Reader:
    """Builds the structure. An array under several names is one object."""

    def __init__(self, table: Table, convert: Any) -> None:
        self._table = table
        self._convert = convert
        self._known: dict[tuple[Any, ...], Any] = {}

    def read(self) -> Any:
        text = (self._table.metadata or {}).get(_TREE)
        if text is None:
            return {name: self._tensor(name) for name in self._table.entries}
        try:
            node = json.loads(text)
            self._check(node)
        except (ValueError, RecursionError) as error:
            cause = f"its structure is not valid ({type(error).__name__}: {error})"
            refuse(self._table.segment.name, cause)
        return self._build(node)

    def _check(self, node: Any) -> None:
        """Raises ValueError unless `_build` can build it: another process has written it."""
        if not isinstance(node, dict) or len(node) != 1:
            raise ValueError("a node is not an object with one member")
        ((kind, content),) = node.items()
        if kind == "array":
            is_valid = type(content) is str and content in self._table.entries
        elif kind == "value":
            is_valid = type(content) in _PLAIN
        elif kind == "dict":
            is_valid = type(content) is list and all(
                type(each) is list and len(each) == 2 and type(each[0]) in (str, int)
                for each in content
            )
        else:
            is_valid = kind in ("list", "tuple") and type(content) is list
        if not is_valid:
            raise ValueError(f"not a valid node: {kind!r}")
        if kind in ("dict", "list", "tuple"):
            for each in content:
                self._check(each[1] if kind == "dict" else each)

    def _build(self, node: Any) -> Any:
        ((kind, content),) = node.items()
        if kind == "dict":
            return {key: self._build(each) for key, each in content}
        if kind == "list":
            return [self._build(each) for each in content]
        if kind == "tuple":
            return tuple([self._build(each) for each in content])
        return self._tensor(content) if kind == "array" else content

    def _tensor(self, name: str) -> Any:
        array = self._table.array(name)
        key = (array.data_ptr, array.dtype, array.shape, array.strides)
        if array.size == 0:
            return self._convert(array)
        if key not in self._known:
            self._known[key] = self._convert(array)
        return self._known[key]
