# SPDX-License-Identifier: Apache-2.0
"""Tensors by name in one segment: what load_safetensors has read, or put has written."""

from __future__ import annotations

import contextlib
import importlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from gpushm import _core
from gpushm._devices import device_text
from gpushm._frameworks import converter
from gpushm._table import Table, open_table

if TYPE_CHECKING:
    import os

    from gpushm._core import Array, Client, Segment
    from gpushm._types import Device

__all__ = ["load_safetensors", "safe_open", "shard"]


def _to_device(device: Device | None) -> str | None:
    """As the library names it; None for those that say where the memory is, at most."""
    if device is None or (isinstance(device, str) and device in ("cpu", "cuda")):
        return None
    return device_text(device)


class safe_open:  # noqa: N801
    """The tensors of a segment by name, with the methods of ``safetensors.safe_open``.

    ``name``: of what :func:`load_safetensors`, :meth:`Client.put` or :meth:`Client.share` has made.
    ``framework``: ``"numpy"``, ``"jax"`` (``"flax"``), ``"torch"`` (``"pt"``) or ``"cupy"``; None:
    :class:`gpushm.Array`. ``device``: the GPU that uses the memory (as :meth:`Client.open`);
    ``"cpu"``: the segment must be in host memory; None: where the memory is. ``client``: None
    connects, as :func:`connect` without arguments does. Blocks until the segment is published and
    complete, at most ``timeout`` seconds, also for a broker that starts later.

    Tensors are views of the segment, without a copy, mapped for reading only. They stay valid when
    this object is closed; a context manager closes it at the end.

    Raises as :meth:`Client.open_tensors`, ProtocolError for a damaged table, ValueError.
    """

    def __init__(
        self,
        name: str,
        framework: str | None = None,
        device: Device | None = None,
        *,
        client: Client | None = None,
        timeout: float | None = 0.0,
    ) -> None:
        self._framework = framework
        self._convert = converter(framework)
        end = end_of(timeout)
        with connected(client, timeout, [name]) as connection:
            self._table = open_table(connection, name, device=_to_device(device), timeout=left(end))
        gpus = {each.device for each in self._table.segments} - {"host"}
        if device == "cpu" and gpus:
            self.close()
            raise ValueError(f'"{name}" is on GPU {", ".join(gpus)}: pass device=None')

    def keys(self) -> list[str]:
        """The names of the tensors, sorted."""
        return sorted(self._open().names())

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
        return TensorSlice(table, name, table.entry(name), self._convert)

    def close(self) -> None:
        """Give the segment up, and keep its tensors. Again: no effect."""
        self._table.close()

    def __enter__(self) -> safe_open:
        return self

    def __exit__(self, type: object, value: object, traceback: object, /) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<gpushm.safe_open of {self._table.segment!r}>"

    def _repr_html_(self) -> str:
        """For notebooks."""
        from gpushm import _html

        return _html.of_tensors(self._table)

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

    def __repr__(self) -> str:
        shape = self.get_shape()
        return f'<gpushm.TensorSlice of "{self._name}" {self.get_dtype()} {shape} of {self._table.segment!r}>'

    def get_shape(self) -> list[int]:
        """The shape of the whole tensor."""
        return list(self._entry["shape"])

    def get_dtype(self) -> str:
        """The name of the element type in the table, such as ``"BF16"``."""
        return str(self._entry["dtype"])

    def __getitem__(self, index: Any) -> Any:
        """A view of a part, as the framework slices; JAX copies the part.

        For :class:`gpushm.Array`: integers, slices with a positive step, and ``...``. Indices count
        elements as :meth:`get_shape` does. Of type F4, two of which are in a byte, a slice of the last
        dimension has a step of 1, and begins and ends at even ones; others raise IndexError.
        """
        array = self._table.array(self._name)
        index = index if isinstance(index, tuple) else (index,)
        if not any(each is Ellipsis for each in index):
            index = (*index, Ellipsis)  # NumPy's is then a view also of one element
        if self.get_dtype() == "F4":
            index = _of_pairs(index, array.shape)
        if self._convert is converter(None):
            segment = self._table.segment_of(self._entry)
            return _part(segment, self._entry["data_offsets"][0], array, index)
        return self._table.tensor(self._name, self._convert)[index]


def _of_pairs(index: tuple[Any, ...], shape: tuple[int, ...]) -> tuple[Any, ...]:
    """Indices of bytes with two elements each, of those of elements. ``shape``: of the bytes."""
    if not all(isinstance(each, slice) or hasattr(each, "__index__") for each in _given(index)):
        raise IndexError("indices of F4 are integers, slices, and ...")
    if len(index) - 1 > len(shape):
        raise IndexError(f"more than {len(shape)} indices")
    at = len(index) - 1
    if index[at] is Ellipsis:
        if at < len(shape):
            return index
        at -= 1
    last = index[at]
    if isinstance(last, slice):
        chosen = range(2 * shape[-1])[last]
        if chosen.step == 1 and chosen.start % 2 == 0 and chosen.stop % 2 == 0:
            return *index[:at], slice(chosen.start // 2, chosen.stop // 2), *index[at + 1 :]
    raise IndexError(
        f"{last!r} is not of whole bytes: a byte has two elements of F4 (use a slice from an even "
        "element to an even one, of step 1)"
    )


def _given(index: tuple[Any, ...]) -> list[Any]:
    return [each for each in index if each is not Ellipsis]


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


#: The default of ``load_safetensors``: for a load by this process or another one.
_LOAD_SECONDS = 3600.0


@contextlib.contextmanager
def connected(
    client: Client | None, timeout: float | None = 0.0, prefetch: Sequence[str] = ()
) -> Iterator[Client]:
    """``timeout``: for a broker that starts later. ``prefetch``: of a client that is made."""
    if client is not None:
        yield client
        return
    with _core.connect(timeout=timeout, prefetch=prefetch) as made:
        yield made


def end_of(timeout: float | None) -> float | None:
    return None if timeout is None else time.monotonic() + timeout


def left(end: float | None) -> float | None:
    return None if end is None else max(0.0, end - time.monotonic())


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


class _ProgressBar:
    """In a notebook: tqdm's bar. Raises ImportError without tqdm."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._make = importlib.import_module("tqdm.auto").tqdm
        self._bar: Any = None

    def __call__(self, done: int, total: int, resumed: int, is_here: bool) -> None:
        if self._bar is None:
            units = {"unit": "B", "unit_scale": True}
            self._bar = self._make(total=total, initial=done, desc=self._name, **units)
        self._bar.update(done - self._bar.n)

    def end(self) -> None:
        if self._bar is not None:
            self._bar.close()


def _shown_progress(name: str) -> _ProgressBar | _ProgressLine | None:
    """Where a person sees it: in a notebook, or on a terminal."""
    if "ipykernel" in sys.modules:
        with contextlib.suppress(ImportError):
            return _ProgressBar(name)
        return _ProgressLine(name)
    return _ProgressLine(name) if sys.stderr.isatty() else None


def shard(dim: int, index: int, count: int) -> tuple[int, int, int, int]:
    """A slice for :func:`load_safetensors`: the ``index``-th of ``count`` equal parts of ``dim``.

    Raises ValueError unless 0 <= index < count.
    """
    if not 0 <= index < count:
        raise ValueError(f"there is no part {index} of {count}")
    return dim, index, index + 1, count


def load_safetensors(
    paths: str | bytes | os.PathLike[Any] | Sequence[str | bytes | os.PathLike[Any]],
    name: str,
    *,
    device: Device = "auto",
    client: Client | None = None,
    threads: int | None = None,
    reading: Literal["auto", "cached", "direct"] = "auto",
    verify: Literal["auto", "full"] = "auto",
    replace: bool = False,
    tensors: Sequence[str] | None = None,
    slices: Mapping[str, tuple[int, ...] | Sequence[tuple[int, ...]]] | None = None,
    timeout: float | None = 3600.0,
    progress: Callable[[int, int, int, bool], object] | bool | None = None,
) -> Segment:
    """Load safetensors files into a segment that all processes share, once.

    As :meth:`Client.load_tensors`, which says what the arguments are and what is raised. ``client``:
    None connects, as :func:`connect` without arguments does, and waits for a broker that starts
    later, if ``timeout`` is not the default. ``progress``: True shows the
    rate and the time that is left: as a line, if standard error is a terminal, and in a notebook as
    a bar of tqdm, if it is installed.
    """
    line = _shown_progress(name) if progress is True else None
    report = progress if callable(progress) else line
    end = end_of(timeout)
    # An hour without a broker says nothing to those who have not started one.
    with connected(client, 0.0 if timeout == _LOAD_SECONDS else timeout) as connection:
        try:
            return connection.load_tensors(
                paths,
                name,
                device=device,
                threads=threads,
                reading=reading,
                verify=verify,
                replace=replace,
                tensors=tensors,
                slices=slices,
                timeout=left(end),
                progress=report,
            )
        finally:
            if line is not None:
                line.end()
