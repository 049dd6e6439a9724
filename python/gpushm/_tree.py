# SPDX-License-Identifier: Apache-2.0
"""Structures of arrays in segments (docs/python.md, "The format of put")."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import math
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from gpushm import _core
from gpushm._errors import AlreadyExistsError, GoneOrReplacedError, NoSuchSegmentError
from gpushm._frameworks import DTYPES, converter, extent
from gpushm._shared import place_of
from gpushm._table import SHARED, Table, open_table, refuse

if TYPE_CHECKING:
    from gpushm._core import Array, Client, Segment
    from gpushm._types import Access, Device, Lifetime

__all__ = ["SharedTree"]

# Of the first byte of each tensor.
_ALIGNMENT = 256
#: The entry of "__metadata__" with a structure that is not one dict of arrays.
_TREE = "gpushm.tree"
#: The name of the tensor of a segment that is one array.
_WHOLE = ""
#: To replace a segment that other processes replace at the same time.
_ATTEMPTS = 5
#: Types that are kept: another process names them.
_MAX_TYPES = 256
_PLAIN = (str, int, float, bool, type(None))
#: Types that were made of "dataclass" nodes, by their name and fields; those that JAX knows.
_dataclasses: dict[tuple[str, ...], type] = {}
_registered: set[type] = set()
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_FLOAT4 = DTYPES["F4"]
#: Types of one byte that the table has no name for, at least not for every shape.
_BYTES = (_FLOAT4, *(dtype for dtype, in_table in _core.dtypes().items() if in_table is None))


class Leaf(NamedTuple):
    """An array of a structure."""

    #: What is copied, and keeps the memory alive.
    source: Any
    address: int
    #: Bytes of the elements, and from the first one to the end of the last one.
    size: int
    extent: int
    dtype: str
    shape: tuple[int, ...]
    #: In elements; None: C order.
    strides: tuple[int, ...] | None
    #: The true type, if `dtype` is one of the same size.
    framework_dtype: str | None


def leaf_of(source: Any, *, may_copy: bool = False) -> Leaf:
    """Raises TypeError for what has no DLPack tensor. ``may_copy``: elements that DLPack or gpushm
    cannot place (NumPy's negative strides) may be those of a copy.
    """
    framework_dtype = None
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(source, torch.Tensor):
        from gpushm._torch import plain

        source, framework_dtype = plain(source)
    masked = getattr(sys.modules.get("numpy.ma"), "MaskedArray", ())
    if isinstance(source, masked):
        raise TypeError("a masked array, whose mask would be lost (put filled(), or its parts)")
    try:
        array = _core.from_dlpack(source)
    except BufferError:
        # A type of ml_dtypes, which NumPy does not export, another byte order, or negative strides.
        flags = getattr(source, "flags", None)
        if flags is None or not hasattr(source, "ctypes"):
            raise TypeError(
                f"{type(source).__name__} of {getattr(source, 'dtype', '?')} has no DLPack tensor "
                "(make a contiguous array of a type that gpushm knows)"
            ) from None
        dtype = _core.dtype_name(source.dtype)
        if not flags.c_contiguous:
            if not may_copy:
                raise TypeError(
                    "the array's strides are not those of memory that can be shared (share a "
                    "contiguous copy)"
                ) from None
            source = source.copy(order="C")
        size = source.nbytes
        return Leaf(source, source.ctypes.data, size, size, dtype, source.shape, None, None)
    return Leaf(
        source,
        array.data_ptr,
        array.nbytes,
        extent(array.shape, array.strides, array.itemsize),
        array.dtype,
        array.shape,
        None if array.contiguous else array.strides,
        framework_dtype,
    )


def _is_scalar(value: Any) -> bool:
    """Of NumPy, and of the libraries that extend it."""
    generic = getattr(sys.modules.get("numpy"), "generic", None)
    return generic is not None and isinstance(value, generic)


def _jax_node(value: Any) -> list[tuple[str | int, Any]] | None:
    """The members of a node that a program has registered in jax.tree_util; None: it is a leaf."""
    jax = sys.modules.get("jax")
    if jax is None or hasattr(value, "__dlpack__") or jax.tree_util.all_leaves([value]):
        return None
    flat, _ = jax.tree_util.tree_flatten_with_path(value, is_leaf=lambda each: each is not value)
    result = []
    for (key,), each in flat:
        names = [getattr(key, name) for name in ("name", "key", "idx") if hasattr(key, name)]
        result.append((names[0] if names and type(names[0]) in (str, int) else str(key), each))
    return result


def _register_in_jax(kind: type, fields: tuple[str, ...]) -> None:
    """Make a dataclass a node of JAX's pytrees, if the program uses JAX."""
    jax = sys.modules.get("jax")
    if jax is not None and kind not in _registered:
        jax.tree_util.register_dataclass(kind, data_fields=fields, meta_fields=())
        _registered.add(kind)


@contextlib.contextmanager
def _at(path: str) -> Iterator[None]:
    """Errors say which part of a structure they are about."""
    try:
        yield
    except (TypeError, ValueError, BufferError) as error:
        if path and type(error) in (TypeError, ValueError, BufferError):
            raise type(error)(f"at {path}: {error}") from error
        raise


def _describe(leaf: Leaf) -> dict[str, Any]:
    """The entry of a table, without a place."""
    result: dict[str, Any]
    if leaf.dtype == _FLOAT4 and leaf.shape and leaf.strides is None:
        result = {"dtype": "F4", "shape": [*leaf.shape[:-1], 2 * leaf.shape[-1]]}
    elif leaf.dtype in _BYTES:
        result = {"dtype": "U8", "shape": leaf.shape, "framework_dtype": leaf.dtype}
    elif leaf.dtype in _NAMES:
        result = {"dtype": _NAMES[leaf.dtype], "shape": leaf.shape}
    else:
        raise TypeError(f"gpushm has no dtype {leaf.dtype}")
    if leaf.framework_dtype is not None:
        result["framework_dtype"] = leaf.framework_dtype
    if leaf.strides is not None:
        result["strides"] = leaf.strides
    return result


class _Writer:
    """Collects the arrays of a structure, each once, with their names and places."""

    may_copy = False

    def __init__(self) -> None:
        self.entries: dict[str, dict[str, Any]] = {}
        self._known: dict[tuple[Any, ...], dict[str, Any]] = {}

    def place(self, leaf: Leaf, path: str) -> tuple[Leaf, dict[str, Any]]:
        """The array as it is stored, and what its entry says about the place."""
        raise NotImplementedError

    def order(self) -> list[str]:
        """The names in the order in which readers find them."""
        return list(self.entries)

    def table(self, tree: Any) -> dict[str, Any]:
        node = self._node(tree, "")
        if node == {"dict": [[name, {"array": name}] for name in self.order()]}:
            return self.entries
        text = json.dumps(node, separators=(",", ":"), allow_nan=False)
        return {"__metadata__": {_TREE: text}} | self.entries

    def _node(self, value: Any, path: str) -> Any:
        if isinstance(value, Mapping):
            for key in value:
                if type(key) not in (str, int):
                    with _at(path):
                        raise TypeError(f"the key {key!r} is not a str or an int")
            return {"dict": [[key, self._below(path, key, value[key])] for key in value]}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            fields = [
                [name, self._below(path, name, each)]
                for name, each in zip(value._fields, value, strict=True)
            ]
            return {"namedtuple": [type(value).__name__, fields]}
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            with _at(path):  # names that a reader refuses
                collections.namedtuple(
                    type(value).__name__, [f.name for f in dataclasses.fields(value)]
                )
            fields = [
                [each.name, self._below(path, each.name, getattr(value, each.name))]
                for each in dataclasses.fields(value)
            ]
            return {"dataclass": [type(value).__name__, fields]}
        if isinstance(value, (list, tuple)):
            nodes = [self._below(path, i, each) for i, each in enumerate(value)]
            return {"list" if isinstance(value, list) else "tuple": nodes}
        if _is_scalar(value):
            item = value.item()
            if type(item) not in _PLAIN:  # complex, or a type that Python lacks
                import numpy

                return {"array": self.add(numpy.asarray(value), path)}
            value = item
        if type(value) in _PLAIN:
            if type(value) is float and not math.isfinite(value):
                with _at(path):
                    raise ValueError(f"{value} is not JSON compliant (put an array of it)")
            return {"value": value}
        if getattr(value, "is_quantized", False) is True:
            from gpushm._torch import quantised_parts

            bytes_of, how = quantised_parts(value)
            return {"quantized": [self.add(bytes_of, path), self._below(path, "how", how)]}
        node = _jax_node(value)
        if node is not None:
            return {"dict": [[key, self._below(path, key, each)] for key, each in node]}
        return {"array": self.add(value, path)}

    def _below(self, path: str, key: str | int, value: Any) -> Any:
        return self._node(value, f"{path}.{key}" if path else str(key))

    def add(self, value: Any, path: str) -> str:
        """Place an array, and return its name in the table."""
        with _at(path):
            entry = self._entry(value, path)
        name, number = path, 1
        while name in self.entries or name == "__metadata__":
            number += 1
            name = f"{path}~{number}"
        self.entries[name] = entry
        return name

    def _entry(self, value: Any, path: str) -> dict[str, Any]:
        leaf = leaf_of(value, may_copy=self.may_copy)
        # Tied weights: one tensor under several names.
        key = (leaf.address, leaf.dtype, leaf.framework_dtype, leaf.shape, leaf.strides)
        if leaf.size and key in self._known:
            return self._known[key]
        leaf, place = self.place(leaf, path)
        self._known[key] = _describe(leaf) | place
        return self._known[key]


class _Copier(_Writer):
    """All arrays in one segment, one after the other."""

    may_copy = True

    def __init__(self) -> None:
        super().__init__()
        #: With their offsets, and their paths in the structure.
        self.leaves: list[tuple[Leaf, int, str]] = []
        self._end = 0

    def order(self) -> list[str]:
        return sorted(self.entries, key=lambda name: self.entries[name]["data_offsets"])

    def place(self, leaf: Leaf, path: str) -> tuple[Leaf, dict[str, Any]]:
        if leaf.extent != leaf.size or (leaf.strides is not None and leaf.dtype == _FLOAT4):
            if hasattr(leaf.source, "contiguous"):  # PyTorch, also on a GPU
                leaf = leaf_of(leaf.source.contiguous())._replace(
                    framework_dtype=leaf.framework_dtype
                )
            leaf = leaf._replace(strides=None)
        begin = self._end
        self.leaves.append((leaf, begin, path))
        self._end += -(-leaf.size // _ALIGNMENT) * _ALIGNMENT
        return leaf, {"data_offsets": [begin, begin + leaf.size]}


def _create(
    client: Client, name: str, size: int, device: Device, lifetime: Lifetime, replace: bool
) -> Segment:
    """A new segment, with ``replace`` also where the name has one; that one keeps it until then."""
    for attempt in range(_ATTEMPTS):
        former = 0
        if replace:
            with contextlib.suppress(NoSuchSegmentError):
                former = client.stat(name).generation
        try:
            return client.create(name, size, device=device, lifetime=lifetime, replaces=former)
        except (AlreadyExistsError, GoneOrReplacedError):
            # Another process has removed or replaced it meanwhile.
            if not replace or attempt == _ATTEMPTS - 1:
                raise
    raise AssertionError


def create_array(
    client: Client,
    name: str,
    shape: list[int],
    dtype: object,
    device: Device,
    lifetime: Lifetime,
    replace: bool,
) -> Array:
    """Zeros that :func:`get` reads as one array."""
    if any(each < 0 for each in shape):
        raise ValueError(f"the shape {tuple(shape)} has a negative number")
    kind = _core.dtype_name(dtype)
    itemsize = _core.dtype_size(dtype)
    size = math.prod(shape) * itemsize
    if size == 0:
        raise ValueError("an array without elements has no memory to share")
    leaf = Leaf(None, 0, size, size, kind, tuple(shape), None, None)
    entries = {_WHOLE: _describe(leaf) | {"data_offsets": [0, size]}}
    node = json.dumps({"array": _WHOLE}, separators=(",", ":"))
    table = json.dumps({"__metadata__": {_TREE: node}} | entries, separators=(",", ":"))
    with _create(client, name, _core.tensors_size(table), device, lifetime, replace) as segment:
        try:
            if segment.device != "host":
                segment.fill(0)
            result = segment.view(kind, shape)
            segment.publish_tensors(table)
        except BaseException:
            with contextlib.suppress(Exception):  # the first one says what was wrong
                client.remove(name, generation=segment.generation)
            raise
    return result


def place_arrays(
    arrays: Mapping[str, Any],
) -> tuple[dict[str, dict[str, Any]], list[tuple[Leaf, int, str]]]:
    """A table of arrays by name, one after the other in a segment, and each with its offset and name.

    Raises TypeError, with the name, as leaf_of().
    """
    writer = _Copier()
    for name, each in arrays.items():
        writer.add(each, name)
    return writer.entries, writer.leaves


def put(
    client: Client,
    name: str,
    tree: Any,
    device: Device,
    lifetime: Lifetime,
    replace: bool,
) -> Segment:
    writer = _Copier()
    table = json.dumps(writer.table(tree), separators=(",", ":"))
    segment = _create(client, name, _core.tensors_size(table), device, lifetime, replace)
    try:
        for leaf, offset, path in writer.leaves:
            with _at(path):
                into = segment.view(leaf.dtype, leaf.shape, offset=offset, strides=leaf.strides)
                into.copy_from(leaf.source)
        segment.publish_tensors(table)
    except BaseException:
        with contextlib.suppress(Exception):  # the first one says what was wrong
            client.remove(name, generation=segment.generation)
        segment.close()
        raise
    return segment


class SharedTree:
    """What :meth:`Client.share` has made of a structure: a segment that describes it, and those
    with its memory. Keeps the memory alive. A context manager: ends the sharing at its end.
    """

    def __init__(
        self, client: Client, segment: Segment, owned: list[Segment], used: list[Any]
    ) -> None:
        self._client = client
        self._segment = segment
        self._name = segment.name
        self._owned = owned
        self._used = used

    @property
    def name(self) -> str:
        return self._name

    @property
    def segments(self) -> list[str]:
        """The names of the segments that were made for it."""
        return [each.name for each in self._owned]

    def close(self) -> None:
        """End the sharing: new opens fail, existing mappings remain. Again: no effect.

        Finish the use of the memory by others before it is freed, as with :meth:`Segment.unshare`.
        Raises as that.
        """
        if not self._segment.closed:
            # A reader may have it open. Somebody may have removed it, or put another one there.
            with contextlib.suppress(NoSuchSegmentError, GoneOrReplacedError):
                self._client.remove(self._name, generation=self._segment.generation)
            self._segment.close()
        kept, first = [], None
        for each in self._owned:
            try:
                _end_sharing(each)
            except Exception as error:
                first = first or error
                kept.append(each)
        self._owned[:] = kept
        if first is not None:
            raise first
        self._used.clear()

    def __enter__(self) -> SharedTree:
        return self

    def __exit__(self, type: object, value: object, traceback: object, /) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<gpushm.SharedTree of {self._segment!r}>"

    def _repr_html_(self) -> str:
        """For notebooks."""
        from gpushm import _html

        return _html.of_segment(self._segment)


def _end_sharing(segment: Segment) -> None:
    if not segment.closed:
        if segment.state == "live":
            with contextlib.suppress(NoSuchSegmentError):  # removed meanwhile
                segment.unshare()
        segment.close()


class _Sharer(_Writer):
    """Each storage in a segment of its own, unless it is in one already."""

    def __init__(self, client: Client, name: str) -> None:
        super().__init__()
        self._client = client
        self._name = name
        self.owned: list[Segment] = []
        self.used: list[Any] = []
        #: Their numbers; 0 is the segment with the description.
        self.segments: dict[tuple[str, int, bool], int] = {}
        self._epoch = client.broker().epoch

    def place(self, leaf: Leaf, path: str) -> tuple[Leaf, dict[str, Any]]:
        if leaf.size == 0:
            return leaf, {"data_offsets": [0, 0], "segment": 0}
        memory = _core.find_memory(leaf.address, leaf.extent)
        if memory is None or place_of(memory).epoch != self._epoch:
            memory = self._share(leaf).view()
        self.used += (leaf.source, memory)
        where = place_of(memory)
        begin = where.offset + leaf.address - memory.data_ptr
        known = (where.name, where.generation, memory.__dlpack_device__()[0] == 1)
        number = self.segments.setdefault(known, len(self.segments) + 1)
        return leaf, {"data_offsets": [begin, begin + leaf.extent], "segment": number}

    def _share(self, leaf: Leaf) -> Segment:
        """The whole storage: other arrays of it are in the same segment."""
        whole = leaf.source
        if hasattr(whole, "untyped_storage"):
            from gpushm._torch import whole_storage

            whole = whole_storage(whole)
        name = f"{self._name}/~{len(self.owned)}"
        self.owned.append(self._client.share(name, whole))
        return self.owned[-1]


def share(client: Client, name: str, tree: Any) -> SharedTree:
    writer = _Sharer(client, name)
    try:
        table = writer.table(tree)
        content = json.dumps(
            {"segments": list(writer.segments), "tensors": table}, separators=(",", ":")
        ).encode()
        segment = client.create(name, len(content), device="host")
        try:
            segment.write(content)
            segment.publish(SHARED)
        except BaseException:
            segment.close()
            raise
    except BaseException:
        for each in writer.owned:
            with contextlib.suppress(Exception):  # the first one says what was wrong
                _end_sharing(each)
        raise
    return SharedTree(client, segment, writer.owned, writer.used)


def get(
    client: Client,
    name: str,
    framework: str | None,
    access: Access,
    timeout: float | None,
    device: str | None,
) -> Any:
    convert = converter(framework)
    table = open_table(client, name, access=access, device=device, timeout=timeout)
    try:
        return _Reader(table, convert).read()
    finally:
        table.close()


def _dataclass_of(name: str, fields: tuple[str, ...]) -> type:
    """The same type for the same name and fields. Raises ValueError."""
    key = (name, *fields)
    known = _dataclasses.get(key)
    if known is None:
        collections.namedtuple(name, fields)  # raises ValueError for names that Python refuses
        known = dataclasses.make_dataclass(name, fields)
        if len(_dataclasses) < _MAX_TYPES:
            _dataclasses[key] = known
    _register_in_jax(known, fields)
    return known


class _Reader:
    """Builds the structure. An array under several names is one object."""

    def __init__(self, table: Table, convert: Any) -> None:
        self._table = table
        self._convert = convert
        self._known: dict[tuple[Any, ...], Any] = {}
        self._types: dict[tuple[str, ...], Any] = {}

    def read(self) -> Any:
        text = (self._table.metadata or {}).get(_TREE)
        if text is None:
            return {name: self._tensor(name) for name in self._table.names()}
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
            is_valid = type(content) is str and content in self._table
        elif kind == "value":
            is_valid = type(content) in _PLAIN
        elif kind == "dict":
            is_valid = type(content) is list and all(
                type(each) is list and len(each) == 2 and type(each[0]) in (str, int)
                for each in content
            )
        elif kind in ("namedtuple", "dataclass"):
            is_valid = (
                type(content) is list
                and len(content) == 2
                and type(content[0]) is str
                and type(content[1]) is list
                and all(
                    type(each) is list and len(each) == 2 and type(each[0]) is str
                    for each in content[1]
                )
            )
            if is_valid:
                self._type_of(kind, content)
        elif kind == "quantized":
            is_valid = (
                type(content) is list
                and len(content) == 2
                and type(content[0]) is str
                and content[0] in self._table
            )
        else:
            is_valid = kind in ("list", "tuple") and type(content) is list
        if not is_valid:
            raise ValueError(f"not a valid node: {kind!r}")
        if kind == "quantized":
            self._check(content[1])
        elif kind in ("namedtuple", "dataclass"):
            for each in content[1]:
                self._check(each[1])
        elif kind in ("dict", "list", "tuple"):
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
        if kind == "namedtuple":
            return self._type_of(kind, content)._make([self._build(each) for _, each in content[1]])
        if kind == "dataclass":
            return self._type_of(kind, content)(*[self._build(each) for _, each in content[1]])
        if kind == "quantized":
            return self._quantized(content)
        return self._tensor(content) if kind == "array" else content

    def _type_of(self, kind: str, content: Any) -> Any:
        """A type with the name and the fields of the one that was put. Raises ValueError."""
        name, fields = content[0], tuple(name for name, _ in content[1])
        if kind == "dataclass":
            return _dataclass_of(name, fields)
        key = (name, *fields)
        if key not in self._types:
            self._types[key] = collections.namedtuple(name, fields)
        return self._types[key]

    def _quantized(self, content: Any) -> Any:
        name, how = content[0], self._build(content[1])
        if self._convert is not converter("torch"):
            return self._tensor(name)
        from gpushm._torch import make_quantised

        try:
            return make_quantised(self._tensor(name), how)
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            cause = f'the quantised tensor "{name}" is not valid ({type(error).__name__}: {error})'
            refuse(self._table.segment.name, cause)

    def _tensor(self, name: str) -> Any:
        array = self._table.array(name)
        wanted = self._table.entry(name).get("framework_dtype")
        key = (array.data_ptr, array.dtype, wanted, array.shape, array.strides)
        if array.size == 0:
            return self._table.tensor(name, self._convert)
        if key not in self._known:
            self._known[key] = self._table.tensor(name, self._convert)
        return self._known[key]
