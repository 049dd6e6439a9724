# SPDX-License-Identifier: Apache-2.0
"""Tensors by name in one segment: what load_safetensors has read, or put has written."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from gpushm import _core
from gpushm._errors import ErrorCode, InvalidArgumentError, from_parts

if TYPE_CHECKING:
    import os

    from gpushm._core import Array, Client, Segment

__all__ = ["load_safetensors", "safe_open"]

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


def _torch_table() -> Any:
    """PyTorch's table of C functions for DLPack; None before 2.10."""
    import torch

    return getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)


def to_torch(array: Array) -> Any:
    import torch

    table = _torch_table()
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


def refuse(name: str, cause: str) -> NoReturn:
    """Raises ProtocolError: the table is another process's, and damaged or hostile."""
    code, step = int(ErrorCode.PROTOCOL_ERROR), "load or put it again under another name"
    message = f'read tensors "{name}": {cause} ({step})'
    raise from_parts(code, "read tensors", name, cause, step, message)


def extent(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> int:
    """Bytes from the first element to the end of the last one. ``strides``: in elements."""
    if 0 in shape:
        return 0
    last = sum((count - 1) * stride for count, stride in zip(shape, strides, strict=True))
    return (last + 1) * itemsize


class Table:
    """The tensors of a segment. The library has checked that all of them are within it."""

    def __init__(self, segment: Segment) -> None:
        #: Those with tensors, and the one with the table.
        self.segments = [segment]
        self.segment = segment
        self._read: _core.TensorTable | None = _core.read_tensor_table(segment)
        self._content: tuple[dict[str, dict[str, Any]], dict[str, str] | None] | None = None

    def _parsed(self) -> tuple[dict[str, dict[str, Any]], dict[str, str] | None]:
        if self._content is None:
            assert self._read is not None
            try:
                entries = json.loads(self._read.text())
            except (ValueError, RecursionError) as error:  # numbers of thousands of digits
                refuse(
                    self.segment.name, f"its table is not valid ({type(error).__name__}: {error})"
                )
            metadata = entries.pop("__metadata__", None)
            self._content = entries, metadata
        return self._content

    @property
    def entries(self) -> dict[str, dict[str, Any]]:
        return self._parsed()[0]

    @property
    def metadata(self) -> dict[str, str] | None:
        return self._parsed()[1]

    def segment_of(self, entry: dict[str, Any]) -> Segment:
        """The one of ``segments`` that has this tensor."""
        return self.segment

    def place(self, name: str) -> tuple[int, int, int]:
        """The number of that segment, and the place in it."""
        begin, end = self.entries[name]["data_offsets"]
        return 0, begin, end

    def close(self) -> None:
        for each in self.segments:
            each.close()

    def tensor(self, name: str, convert: Callable[[Array], Any]) -> Any:
        """A framework's tensor, also of types that DLPack cannot express. Raises as array()."""
        result = convert(self.array(name))
        wanted = self.entries[name].get("framework_dtype")
        if wanted is not None and convert is to_torch:
            from gpushm._torch import view_as

            result = view_as(result, wanted)
        return result

    def tensors(self, convert: Callable[[Array], Any]) -> dict[str, Any]:
        """All of them, in the order of their places. Raises as array()."""
        known = self._all_of_torch() if convert is to_torch else None
        if known is None:
            return {name: self.tensor(name, convert) for name in self.offset_keys()}
        return {
            name: self.tensor(name, convert) if each is None else each
            for name, each in known.items()
        }

    def _all_of_torch(self) -> dict[str, Any] | None:
        """Those that need no Python code for each; None for the others, or instead of all."""
        import torch

        table = _torch_table()
        if table is None or self._read is None:
            return None
        if self.segment.device != "host":
            torch.cuda.init()
        types = {key: each for key, each in DTYPES.items() if key != "F4" and hasattr(torch, each)}
        return self._read.exchange(self.segment, types, table)

    def array(self, name: str) -> Array:
        """A view of the segment. Raises KeyError, ProtocolError, TypeError (F6)."""
        entry = self.entries[name]
        shape, kind = entry["shape"], entry["dtype"]
        dtype = DTYPES.get(kind)
        if dtype is None or (kind == "F4" and (not shape or shape[-1] % 2 != 0)):
            raise TypeError(
                f"no framework has tensors of {kind} and shape {shape}, such as {name} "
                f"(use the bytes: Segment.view at offset {entry['data_offsets'][0]})"
            )
        try:
            if kind == "F4":  # two elements in a byte
                if "strides" in entry:
                    raise TypeError("strides of elements that are not bytes")
                shape = [*shape[:-1], shape[-1] // 2]
            result = self.segment_of(entry).view(
                dtype, shape, offset=entry["data_offsets"][0], strides=entry.get("strides")
            )
        except (ValueError, TypeError, OverflowError) as error:
            refuse(self.segment.name, f'the tensor "{name}" is not valid: {error}')
        if "framework_dtype" in entry:
            # Of another size, or of a framework only: the type of the table is right, too.
            with contextlib.suppress(TypeError):
                result = result.view(entry["framework_dtype"])
        return result

    def offset_keys(self) -> list[str]:
        return sorted(self.entries, key=self.place)


#: Metadata of a segment that says where other segments have the tensors.
SHARED = b'{"format":"gpushm-shared/1"}'


class SharedTable(Table):
    """Tensors in several segments of one process, which ``share`` has described in a segment."""

    def __init__(
        self,
        segment: Segment,
        client: Client,
        access: str,
        device: str | None,
        timeout: float | None,
    ) -> None:
        self.segment = segment
        #: Number 0 is the one with the description.
        self.segments = [segment]
        try:
            content = json.loads(segment.read())
            entries = dict(content["tensors"])
            self._content = entries, entries.pop("__metadata__", None)
            self._read = None
            places = [
                (str(name), int(generation), bool(on_host))
                for name, generation, on_host in content["segments"]
            ]
            self._check(len(places) + 1)
        except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
            name = segment.name
            segment.close()
            refuse(name, f"it is not valid ({type(error).__name__}: {error})")
        try:
            for name, generation, on_host in places:
                opened = client.open(
                    name, access=access, device=None if on_host else device, timeout=timeout
                )
                self.segments.append(opened)
                require_same(opened, generation, segment.epoch)
        except BaseException:
            self.close()
            raise

    def _check(self, segments: int) -> None:
        """What the library checks of other tables: another process has written it."""
        for entry in self.entries.values():
            offsets = entry["data_offsets"]
            numbers = [*entry["shape"], *offsets, *entry.get("strides", []), entry["segment"]]
            if (
                any(type(each) is not int or each < 0 for each in numbers)
                or len(offsets) != 2
                or entry["segment"] >= segments
                or type(entry["dtype"]) is not str
                or type(entry.get("framework_dtype", "")) is not str
            ):
                raise ValueError("an entry is not valid")
        texts = self.metadata if self.metadata is not None else {}
        if type(texts) is not dict or any(type(each) is not str for each in texts.values()):
            raise ValueError("its metadata are not valid")

    def segment_of(self, entry: dict[str, Any]) -> Segment:
        number: int = entry["segment"]
        return self.segments[number]

    def place(self, name: str) -> tuple[int, int, int]:
        entry = self.entries[name]
        begin, end = entry["data_offsets"]
        return entry["segment"], begin, end


def require_same(segment: Segment, generation: int, epoch: bytes) -> None:
    """Raises StaleGenerationError unless it is that segment, and not a later one of its name."""
    if (segment.generation, segment.epoch) != (generation, epoch):
        name = segment.name
        segment.close()
        code, cause = int(ErrorCode.STALE_GENERATION), "the name has another segment by now"
        step = "keep the segment until all receivers have opened it, and do not reuse its name"
        raise from_parts(code, "open", name, cause, step, f'open "{name}": {cause} ({step})')


def open_table(
    client: Client,
    name: str,
    *,
    access: str = "read",
    device: str | None = None,
    timeout: float | None = 0.0,
) -> Table:
    """The tensors of a name: loaded, put or shared. Raises as Client.open_tensors."""
    try:
        segment = client.open_tensors(name, device=device, timeout=timeout)
    except InvalidArgumentError:
        other = client.open(name)
        if other.metadata != SHARED:
            other.close()
            raise
        return SharedTable(other, client, access, device, timeout)
    if access != "read":
        with segment:
            segment = client.open(name, access=access, device=device)
    try:
        return Table(segment)
    except BaseException:
        segment.close()
        raise


def _to_device(device: str | int | None) -> str | None:
    """As the library names it, of names of frameworks."""
    if device is None or device in ("cpu", "cuda"):
        return None
    return str(device).removeprefix("cuda:")


class safe_open:  # noqa: N801
    """The tensors of a segment by name, with the methods of ``safetensors.safe_open``.

    ``name``: of what :func:`load_safetensors`, :meth:`Client.put` or :meth:`Client.share` has made.
    ``framework``: ``"numpy"``, ``"jax"`` (``"flax"``), ``"torch"`` (``"pt"``) or ``"cupy"``; None:
    :class:`gpushm.Array`. ``device``: the GPU that uses the memory (``0``, ``"cuda:0"``, a UUID);
    ``"cpu"``: the segment must be in host memory; None: where the memory is. ``client``: None
    connects, as :func:`connect` without arguments does. Blocks until the segment is published and
    complete, at most ``timeout`` seconds.

    Tensors are views of the segment, without a copy, mapped for reading only. They stay valid when
    this object is closed; a context manager closes it at the end.

    Raises as :meth:`Client.open_tensors`, ProtocolError for a damaged table, ValueError.
    """

    def __init__(
        self,
        name: str,
        framework: str | None = None,
        device: str | int | None = None,
        *,
        client: Client | None = None,
        timeout: float | None = 0.0,
    ) -> None:
        self._framework = framework
        self._convert = converter(framework)
        with connected(client) as by:
            self._table = open_table(by, name, device=_to_device(device), timeout=timeout)
        gpus = {each.device for each in self._table.segments} - {"host"}
        if device == "cpu" and gpus:
            self.close()
            raise ValueError(f'"{name}" is on GPU {", ".join(gpus)}: pass device=None')

    def keys(self) -> list[str]:
        """The names of the tensors, sorted."""
        return sorted(self._open().entries)

    def offset_keys(self) -> list[str]:
        """The names of the tensors in the order of their places."""
        return self._open().offset_keys()

    def metadata(self) -> dict[str, str] | None:
        """The texts of ``__metadata__``; None without them."""
        return self._open().metadata

    def get_tensor(self, name: str) -> Any:
        """One tensor. Raises KeyError."""
        return self._open().tensor(name, self._convert)

    def get_tensors(self) -> dict[str, Any]:
        """All tensors in the order of their places."""
        return self._open().tensors(self._convert)

    def get_slice(self, name: str) -> TensorSlice:
        """One tensor, of which indices give parts. Raises KeyError."""
        table = self._open()
        return TensorSlice(table, name, table.entries[name], self._convert)

    def close(self) -> None:
        """Give the segment up, and keep its tensors. Again: no effect."""
        self._table.close()

    def __enter__(self) -> safe_open:
        return self

    def __exit__(self, type: object, value: object, traceback: object, /) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<gpushm.safe_open of {self._table.segment!r}>"

    def _open(self) -> Table:
        # Raises after close().
        self._table.segment.size  # noqa: B018
        return self._table


class TensorSlice:
    """What :meth:`safe_open.get_slice` returns."""

    def __init__(
        self, table: Table, name: str, entry: dict[str, Any], convert: Callable[[Array], Any]
    ) -> None:
        self._table = table
        self._name = name
        self._entry = entry
        self._convert = convert

    def get_shape(self) -> list[int]:
        """The shape of the whole tensor."""
        return list(self._entry["shape"])

    def get_dtype(self) -> str:
        """The name of the element type in the table, such as ``"BF16"``."""
        return str(self._entry["dtype"])

    def __getitem__(self, index: Any) -> Any:
        """A view of a part, as the framework slices; JAX copies the part.

        For :class:`gpushm.Array`: integers, slices with a positive step, and ``...``.
        """
        array = self._table.array(self._name)
        index = index if isinstance(index, tuple) else (index,)
        if not any(each is Ellipsis for each in index):
            index = (*index, Ellipsis)  # NumPy's is then a view also of one element
        if self._convert is _FRAMEWORKS[None]:
            segment = self._table.segment_of(self._entry)
            return _part(segment, self._entry["data_offsets"][0], array, index)
        return self._table.tensor(self._name, self._convert)[index]


def _part(segment: Segment, begin: int, array: Array, index: tuple[Any, ...]) -> Array:
    at = next(i for i, each in enumerate(index) if each is Ellipsis)
    missing = array.ndim - len(index) + 1
    full = (*index[:at], *[slice(None)] * missing, *index[at + 1 :])
    if missing < 0 or len(full) != array.ndim:
        raise IndexError(f"more than {array.ndim} indices")
    shape, strides, offset = [], [], 0
    for each, size, stride in zip(full, array.shape, array.strides, strict=True):
        if isinstance(each, slice):
            chosen = range(size)[each]
            if chosen.step < 1:
                raise IndexError("a slice has a positive step")
            offset += chosen.start * stride if chosen else 0
            shape.append(len(chosen))
            strides.append(stride * chosen.step)
        else:
            offset += range(size)[each] * stride
    offset = begin + offset * array.itemsize
    return segment.view(array.dtype, shape, offset=offset, strides=strides)


@contextlib.contextmanager
def connected(client: Client | None) -> Iterator[Client]:
    if client is not None:
        yield client
        return
    with _core.connect() as made:
        yield made


class _ProgressLine:
    """On a terminal: how far, how fast, and how long it will take."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._begin: tuple[float, int] | None = None
        self._length = 0

    def __call__(self, done: int, total: int, resumed: int, is_here: bool) -> None:
        now = time.monotonic()
        if self._begin is None:
            self._begin = now, done
        seconds, since = now - self._begin[0], done - self._begin[1]
        text = f"{self._name}: {done / 1e9:.1f} of {total / 1e9:.1f} GB"
        if seconds > 0 and since > 0:
            rate = since / seconds
            text += f", {rate / 1e9:.2f} GB/s, {(total - done) / rate:.0f} s left"
        if not is_here:
            text += ", by another process"
        sys.stderr.write("\r" + text.ljust(self._length))
        sys.stderr.flush()
        self._length = len(text)

    def end(self) -> None:
        if self._length != 0:
            sys.stderr.write("\n")
            sys.stderr.flush()


def load_safetensors(
    paths: str | bytes | os.PathLike[Any] | Sequence[str | bytes | os.PathLike[Any]],
    name: str,
    *,
    device: str = "auto",
    client: Client | None = None,
    threads: int | None = None,
    reading: str = "auto",
    timeout: float | None = 3600.0,
    progress: Callable[[int, int, int, bool], object] | bool | None = None,
) -> Segment:
    """Load safetensors files into a segment that all processes share, once.

    As :meth:`Client.load_tensors`, which says what the arguments are and what is raised. ``client``:
    None connects, as :func:`connect` without arguments does. ``progress``: True writes a line with
    the rate and the time that is left, if standard error is a terminal.
    """
    line = _ProgressLine(name) if progress is True and sys.stderr.isatty() else None
    report = progress if callable(progress) else line
    with connected(client) as by:
        try:
            return by.load_tensors(
                paths,
                name,
                device=device,
                threads=threads,
                reading=reading,
                timeout=timeout,
                progress=report,
            )
        finally:
            if line is not None:
                line.end()
