# SPDX-License-Identifier: Apache-2.0
"""Arrays that travel to other processes by the name of their segment."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from gpushm import _core
from gpushm._errors import (
    InvalidArgumentError,
    NoSuchSegmentError,
    StaleGenerationError,
    from_parts,
)
from gpushm._frameworks import converter
from gpushm._table import require_same

if TYPE_CHECKING:
    from gpushm._core import Array, Client
    from gpushm._types import Access

__all__ = ["SharedTensor"]

# The connection of this process for arrays that it gets, and the process that has made it.
_connection: tuple[int, Client] | None = None
# Two threads make one.
_guard = threading.Lock()


class SharedTensor:
    """An array of a published segment that pickles as its place, never as memory or a handle.

    ``array``: of :meth:`Segment.view` or :meth:`Client.get`. ``framework``: of :attr:`tensor`, as in
    :meth:`Client.get`. For ``multiprocessing`` (spawn, too), Ray, ZeroMQ, and between containers: the
    receiver connects as :func:`connect` without arguments does, once, and opens the segment by name;
    it maps the memory for reading only if it is so here. The segment must exist until then: keep it
    open here, or make it persistent.

    Raises TypeError if the array is not of a segment, InvalidArgumentError where it is pickled and
    its segment is not published, NoSuchSegmentError where it is unpickled, and StaleGenerationError
    if the name has another segment by then; these say if the receiver's broker is another one.
    """

    def __init__(self, array: Array, framework: str | None = None) -> None:
        self._convert = converter(framework)
        if not isinstance(array, _core.Array):
            raise TypeError(
                f"{type(array).__name__} is not a gpushm.Array: other processes cannot open its "
                "memory (put() it, or share() its memory)"
            )
        with contextlib.suppress(BufferError, InvalidArgumentError):  # not ready or published yet
            place_of(array)
        self.array = array
        self.framework = framework

    @property
    def tensor(self) -> Any:
        """The framework's tensor on the memory, without a copy."""
        return self._convert(self.array)

    def __reduce__(self) -> tuple[type[SharedTensor], tuple[Array, str | None]]:
        return SharedTensor, (self.array, self.framework)

    def __repr__(self) -> str:
        return f"<gpushm.SharedTensor of {self.array!r}>"


def _connect_new() -> Client:
    return _core.connect()


def default_client() -> Client:
    """The connection of this process, made as connect() without arguments does."""
    global _connection
    with _guard:
        if _connection is None or _connection[0] != os.getpid() or _connection[1].closed:
            _connection = os.getpid(), _connect_new()
        return _connection[1]


def _forget_in_child() -> None:
    global _guard
    _guard = threading.Lock()


os.register_at_fork(after_in_child=_forget_in_child)


class Place(NamedTuple):
    """Where an array is, for every process of the domain."""

    name: str
    generation: int
    #: Of the broker.
    epoch: bytes
    access: Access
    dtype: str
    shape: tuple[int, ...]
    #: In elements.
    strides: tuple[int, ...]
    #: In bytes, from the first one of the segment.
    offset: int


def place_of(array: Array) -> Place:
    """Raises TypeError if it is not of a segment, BufferError if it is not ready."""
    return Place(*array.__reduce__()[1])


def open_place(client: Client, place: Place) -> Array:
    """Raises as Client.open, and StaleGenerationError."""
    with client.open(place.name, access=place.access) as segment:
        require_same(segment, place.generation, place.epoch)
        return segment.view(place.dtype, place.shape, offset=place.offset, strides=place.strides)


def open_array(*place: Any) -> Array:
    """What Array.__reduce__ has described."""
    where = Place(*place)
    client = default_client()
    try:
        return open_place(client, where)
    except (NoSuchSegmentError, StaleGenerationError) as error:
        here = client.broker()
        if here.epoch == where.epoch:
            raise
        cause = (
            f"the array is of another broker (epoch {where.epoch.hex()}) than {here.socket} "
            f"(epoch {here.epoch.hex()})"
        )
        step = "set GPUSHM_SOCKET to the socket that the sender has used"
        message = f'open "{where.name}": {cause} ({step})'
        code = int(error.code)
        raise from_parts(code, "open", where.name, cause, step, message) from error
