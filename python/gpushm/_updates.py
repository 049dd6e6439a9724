# SPDX-License-Identifier: Apache-2.0
"""Live updates of weights: a publisher of versions, and those who apply them (decision 48)."""

from __future__ import annotations

import contextlib
import json
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from gpushm import _core
from gpushm._copies import (
    Copy,
    Fence,
    enqueue,
    framework_of,
    is_view,
    naming,
    on_stream,
    part_of,
    wait_for_devices,
    wait_for_stream,
)
from gpushm._errors import (
    BrokerGoneError,
    ErrorCode,
    InvalidArgumentError,
    NoSuchSegmentError,
    from_parts,
)
from gpushm._frameworks import converter
from gpushm._shards import Box, Shard, decode_boxes, encode_boxes, pieces_of, shard_of, whole
from gpushm._table import Table, refuse
from gpushm._tensors import end_of, left
from gpushm._tree import Leaf, place_arrays

if TYPE_CHECKING:
    from gpushm._core import Array, Client, Segment, Stop, Subscription
    from gpushm._types import Device

__all__ = ["WeightPublisher", "WeightSubscriber"]

#: In the metadata of a table of tensors: which of them are parts of larger ones.
_SHARDS = "gpushm.shards"
#: Of the copies that are in flight when a subscriber is closed.
_CLOSE_SECONDS = 30.0


# ---- the trainer's side ----


class WeightPublisher:
    """Publishes the weights of a trainer again and again, each time as a new version of ``name``.

    ``part``, ``parts``: if several processes publish one version together (ranks): the name of what
    this one has, and the names of all. ``device``: where the version is, as :meth:`Client.create`.
    ``keep``, ``keep_bytes``: old versions that stay although nobody uses them, as
    :meth:`Client.create_version`. ``client``: None connects, as :func:`connect` without arguments does,
    and :meth:`close` closes that connection. Not for several threads at a time.
    """

    def __init__(
        self,
        name: str,
        *,
        part: str = "",
        parts: Sequence[str] = (),
        device: Device = "auto",
        keep: int = 0,
        keep_bytes: int | None = None,
        client: Client | None = None,
    ) -> None:
        if (part or parts) and part not in parts:
            raise ValueError(f'"{part}" is not one of the parts {list(parts)}')
        self._owned = client is None
        self._client = _core.connect() if client is None else client
        self._name = name
        self._part = part
        self._parts = list(parts)
        self._device = device
        self._keep = keep
        self._keep_bytes = keep_bytes
        self._version: int | None = None

    @property
    def name(self) -> str:
        return self._name

    @property
    def version(self) -> int | None:
        """The last version of which :meth:`update` has published this process's part."""
        return self._version

    def begin(self) -> int:
        """Begin a version, and return its number, which the other ranks pass to :meth:`update`.

        Raises as :meth:`Client.create_version`.
        """
        return self._client.create_version(
            self._name, self._parts, keep=self._keep, keep_bytes=self._keep_bytes
        )

    def update(self, tensors: Any, *, stream: object = None, number: int | None = None) -> int:
        """Copy tensors into a new version, publish it, and return its number.

        ``tensors``: a mapping of names to arrays, DTensors of PyTorch (of which this process publishes
        what it has) or :class:`Shard`, or a ``torch.nn.Module``, of memory of the host or of any GPU.
        Copies come after the earlier work of ``stream`` (an integer, or an object of PyTorch or CuPy;
        None: PyTorch's current one, for other libraries the legacy default stream), and the call blocks
        until they are made. ``number``: of a version that another rank has begun; None: a new one, which
        is published if this is its only part.

        Subscribers see the version when all of its parts are published. If the call raises, or a
        process with a part dies, no part is ever seen, and the version before serves on. Raises
        TypeError and ValueError, with the name of the tensor, and as :meth:`Client.create`.
        """
        made = number
        try:
            table, leaves = _table_of(members(tensors))
            if made is None:
                made = self.begin()
            path = _path(self._name, made, self._part)
            with self._client.create(
                path, _core.tensors_size(table), device=self._device, lifetime="persistent"
            ) as segment:
                _fill(segment, leaves, stream)
                segment.publish_tensors(table)
        except BaseException:
            if made is not None:
                with contextlib.suppress(Exception):  # the first one says what was wrong
                    self.abandon(made)
            raise
        self._version = made
        return made

    def abandon(self, number: int) -> None:
        """End a version that is not published: no part of it is ever seen.

        Raises gpushm.InvalidArgumentError if it is published.
        """
        with contextlib.suppress(NoSuchSegmentError):
            state = {each.number: each.state for each in self._client.versions(self._name)}
            if state.get(number) == "published":
                code, step = (
                    int(ErrorCode.INVALID_ARGUMENT),
                    "withdraw it, or remove it by its name",
                )
                cause, path = "the version is published", _path(self._name, number, "")
                message = f'abandon "{path}": {cause} ({step})'
                raise from_parts(code, "abandon", path, cause, step, message)
            self._client.remove(_path(self._name, number, ""))

    def close(self) -> None:
        """Close the connection if it is this object's. Versions stay. Again: no effect."""
        if self._owned:
            self._client.close()

    def __enter__(self) -> WeightPublisher:
        return self

    def __exit__(self, type: object, value: object, traceback: object, /) -> None:
        self.close()

    def __repr__(self) -> str:
        return f'<gpushm.WeightPublisher of "{self._name}", version {self._version}>'


# ---- the engine's side ----


class _Member(NamedTuple):
    """A tensor of an engine that gets new contents."""

    name: str
    tensor: Any
    #: Which elements of the whole tensor it has.
    box: Box
    whole: tuple[int, ...]


class _Version(NamedTuple):
    number: int
    #: What tells it from a version of that number of another broker.
    identity: tuple[bytes, int]
    #: One of each part.
    segments: list[Segment]


class WeightSubscriber:
    """Gives an engine the versions that a :class:`WeightPublisher` publishes, whole ones only.

    ``name``: an alias, such as ``"w/policy@prod"``, or ``"w/policy"``, which means
    ``"w/policy@latest"``. ``parts``: as the publisher's; none: one without a name. ``device``: the GPU
    that uses the memory, as :meth:`Client.open`. ``client``: None connects, and :meth:`close` closes.

    ``mode``: ``"copy"``: the contents are copied into the engine's tensors, on a stream, between two
    of its steps; right for CUDA graphs. ``"swap"``: the engine's tensors (PyTorch's) are pointed at
    the version, without a copy; a captured graph would go on with the former memory, and must not be
    launched again. ``"remap"``: as ``"swap"`` the first time; each later version, which must have the
    same tensors in the same places, is mapped at the addresses of the first one (:class:`Window`):
    without a copy, and right for graphs that are not running. ``cast``: ``"copy"`` converts elements
    of other types, too; otherwise they are refused.

    Not for several threads at a time.
    """

    def __init__(
        self,
        name: str,
        *,
        parts: Sequence[str] = (),
        mode: Literal["copy", "swap", "remap"] = "copy",
        device: Device | None = None,
        cast: bool = False,
        client: Client | None = None,
    ) -> None:
        if mode not in ("copy", "swap", "remap"):
            raise ValueError('mode is "copy", "swap" or "remap"')
        if cast and mode != "copy":
            raise ValueError(f'mode "{mode}" does not convert elements (cast is for "copy")')
        base, _, alias = name.partition("@")
        if alias.isdecimal():
            raise ValueError(f'"{name}" is one version, which never changes (use an alias)')
        if "/" in alias:
            raise ValueError(f'"{name}" is a part of a version (pass its name in parts)')
        self._base, self._alias = base, alias or "latest"
        self._parts = list(parts) or [""]
        self._mode = mode
        self._device = device
        self._cast = cast
        self._owned = client is None
        self._client = _core.connect() if client is None else client
        self._events: Subscription | None = None
        #: What `apply` will apply; it is kept open until then.
        self._next: _Version | None = None
        self._applied: tuple[int, tuple[bytes, int]] | None = None
        #: What it was applied to.
        self._targets: Any = None
        #: Of "swap": what the engine's tensors point at.
        self._used: list[Segment] = []
        #: Of "remap": where the engine's tensors are.
        self._windows: _Windows | None = None
        #: What copies and steps that are in flight may still read.
        self._retired: list[tuple[Fence, Any]] = []

    @property
    def name(self) -> str:
        """The alias that it follows."""
        return f"{self._base}@{self._alias}"

    @property
    def version(self) -> int | None:
        """The version that was applied last; None: none."""
        return None if self._applied is None else self._applied[0]

    def poll(self, number: int | None = None) -> int | None:
        """The version to which the alias refers, if it is not the one that was applied; else None.

        It stays open until :meth:`apply`, or until the alias has moved and the next call finds another
        one. Looks at shared memory only as long as the alias has not moved. ``number``: that version
        instead, which another rank of the engine has found: if all ranks have it open before one of them
        applies it, all of them can.

        Raises gpushm.NoSuchSegmentError (``number``: it has ended), and as :meth:`Client.open`.
        """
        self._release()
        place = self.name if number is None else _path(self._base, number, "")
        try:
            first = self._open(place + _below(self._parts[0]))
        except NoSuchSegmentError:
            if number is not None:
                raise
            self._drop_next()
            return None
        identity = _identity(first)
        if self._next is not None and self._next.identity == identity:
            first.close()
            return self._next.number
        self._drop_next()
        if self._applied is not None and self._applied[1] == identity:
            first.close()
            return None
        self._next = self._complete(first)
        return self._next.number

    def wait(self, timeout: float | None = 30.0, *, stop: Stop | None = None) -> bool:
        """Block until :meth:`poll` has a version, at most ``timeout`` seconds. False: it has none.

        Raises gpushm.CancelledError, and as :meth:`Client.subscribe`.
        """
        end = end_of(timeout)
        while self.poll() is None:
            if self._events is None:
                self._events = self._client.subscribe(self.name)
                continue  # what has happened before
            try:
                if not self._await_move(end, stop):
                    return self.poll() is not None
            except BrokerGoneError:
                self._events.close()
                self._events = None
                if left(end) == 0.0:
                    raise
                time.sleep(0.05)  # its successor
        return True

    def _await_move(self, end: float | None, stop: Stop | None) -> bool:
        """Wait until the alias may have moved. Other events of its name are those of its users."""
        assert self._events is not None
        while True:
            event = self._events.next(timeout=left(end), stop=stop)
            if event is None:
                return False
            if event.kind in ("alias-moved", "resync"):
                return True

    def apply(
        self, targets: Any, *, stream: object = None, number: int | None = None
    ) -> int | None:
        """Give ``targets`` the contents of the version to which the alias refers.

        ``targets``: a ``torch.nn.Module`` (its parameters and buffers), or a mapping of names to tensors
        of the engine, which may be views, DTensors, or :class:`Shard` of larger ones: PyTorch's, CuPy's,
        NumPy's (mode ``"copy"``). The version must have each element of each of them; what else it has
        is not used. ``number``: as :meth:`poll`. Returns the number, or None if nothing was to be done.

        What is enqueued on ``stream`` before sees the former contents, what is enqueued later the new
        ones: None is PyTorch's or CuPy's current stream. Work of other streams that uses the targets
        must be ordered by the caller. Does not wait for the GPU, and holds the version until its copies
        are made; but mode ``"remap"`` waits until the GPU has no work of this process, and the engine
        must give it none until the call returns.

        Raises ValueError and TypeError, with the name of the tensor, for what does not fit: then nothing
        is changed. gpushm.ProtocolError for a damaged or hostile table.
        """
        if targets is not self._targets:
            self._applied, self._targets = None, targets
        self.poll(number)
        if self._next is None:
            return None
        version, self._next = self._next, None
        copies: Sequence[Copy] = ()
        try:
            copies = self._plan(members(targets), version.segments)
            self._applied = None  # until all of it is done
            if self._mode == "swap":
                self._swap(copies, stream)
                self._used = version.segments
            elif self._mode == "remap":
                self._remap(copies, version.segments)
                _close(version.segments)
            else:
                self._retired.append((enqueue(copies, stream, self._cast), [version, copies]))
        except BaseException:
            _close(version.segments)
            raise
        self._applied = version.number, version.identity
        self._release()
        return version.number

    def _swap(self, copies: Sequence[Copy], stream: object) -> None:
        targets = [each.target for each in copies]
        former = [self._used, *(each.data for each in targets)]
        for each in copies:
            each.target.data = each.source
        with on_stream(targets, stream) as fence:
            self._retired.append((fence(), former))

    def _remap(self, copies: Sequence[Copy], segments: list[Segment]) -> None:
        wait_for_devices([each.target for each in copies])
        assert self._windows is not None
        self._windows.show(segments)
        for each in copies:
            if each.target.data_ptr() != each.source.data_ptr():
                each.target.data = each.source

    def close(self) -> None:
        """Give up what it has open. Again: no effect.

        Blocks until copies in flight are made, at most 30 s; the engine's tensors stay valid. Raises
        gpushm.TimedOutError.
        """
        self._drop_next()
        end = time.monotonic() + _CLOSE_SECONDS
        while self._retired:
            self._release()
            if self._retired and time.monotonic() > end:
                code, step = int(ErrorCode.TIMED_OUT), "synchronize the stream, and close it again"
                cause = f"copies are in flight after {_CLOSE_SECONDS:g} s"
                message = f'close "{self.name}": {cause} ({step})'
                raise from_parts(code, "close", self.name, cause, step, message)
            if self._retired:
                time.sleep(0.001)
        self._used, self._targets = [], None
        if self._windows is not None:
            self._windows.close()
            self._windows = None
        if self._events is not None:
            self._events.close()
            self._events = None
        if self._owned:
            self._client.close()

    def __enter__(self) -> WeightSubscriber:
        return self

    def __exit__(self, type: object, value: object, traceback: object, /) -> None:
        self.close()

    def __repr__(self) -> str:
        return f'<gpushm.WeightSubscriber of "{self.name}", version {self.version}>'

    # ---- versions ----

    def _open(self, path: str) -> Segment:
        return self._client.open(path, device=self._device)

    def _complete(self, first: Segment) -> _Version:
        """With its other parts, of the same version."""
        segments = [first]
        try:
            number = _number_of(first.name)
            segments += self._client.open_many(
                [_path(self._base, number, each) for each in self._parts[1:]], device=self._device
            )
        except BaseException:
            _close(segments)
            raise
        return _Version(number, _identity(first), segments)

    def _drop_next(self) -> None:
        if self._next is not None:
            _close(self._next.segments)
            self._next = None

    def _release(self) -> None:
        """Give up what no work in flight uses any longer."""
        self._retired = [(fence, used) for fence, used in self._retired if not fence.is_done()]

    # ---- what goes where ----

    def _plan(self, given: dict[str, Any], segments: list[Segment]) -> list[Copy]:
        """All copies, checked. Raises, and changes nothing."""
        kinds = {
            framework_of(each.tensor if isinstance(each, Shard) else each)
            for each in given.values()
        }
        if len(kinds) > 1:
            raise TypeError(f"tensors of several libraries: {sorted(kinds)}")
        if not kinds:
            raise ValueError("there are no tensors to apply a version to")
        framework = kinds.pop()
        if self._mode != "copy" and framework != "torch":
            raise TypeError(
                f"mode \"{self._mode}\" is for PyTorch's tensors, not for {framework}'s"
            )
        windows = self._windows
        if self._mode != "remap":
            parts = [_Part(Table(each), framework) for each in segments]
        else:
            if windows is None:
                windows = _Windows(segments, framework)
            windows.check(segments)
            parts = windows.parts
        copies: list[Copy] = []
        for name, each in given.items():
            tensor = each.tensor if isinstance(each, Shard) else each
            if isinstance(each, Shard):
                member = _Member(name, tensor, Box(each.start, tuple(tensor.shape)), each.shape)
            else:
                member = _Member(name, tensor, whole(tensor.shape), tuple(tensor.shape))
            with naming(name):
                copies += self._copies_of(member, parts)
        if self._mode != "copy":
            _check_tied(copies)
        self._windows = windows
        return copies

    def _copies_of(self, member: _Member, parts: list[_Part]) -> list[Copy]:
        sources = [each.tensors[member.name] for each in parts if member.name in each.tensors]
        boxes = [each.boxes[member.name] for each in parts if member.name in each.tensors]
        if not sources:
            raise ValueError("the version has no such tensor")
        for source, (_, shape) in zip(sources, boxes, strict=True):
            if shape != member.whole:
                raise ValueError(
                    f"the version has it with shape {shape}, the engine {member.whole}"
                )
            if source.dtype != member.tensor.dtype and not self._cast:
                raise ValueError(
                    f"the version has {source.dtype}, and the engine {member.tensor.dtype}"
                )
        pieces = pieces_of(member.box, [box for box, _ in boxes])
        if self._mode != "copy":
            return [self._whole_copy(member, sources, [box for box, _ in boxes])]
        return [
            Copy(
                member.name,
                part_of(member.tensor, piece.target_index),
                part_of(sources[piece.source], piece.source_index),
            )
            for piece in pieces
        ]

    def _whole_copy(self, member: _Member, sources: list[Any], boxes: list[Box]) -> Copy:
        if member.box not in boxes:
            raise ValueError(
                f"the version has no part {member.box.shape} at {member.box.start}, "
                f'and mode "{self._mode}" cannot join parts (use "copy")'
            )
        if is_view(member.tensor):
            raise TypeError(
                f'a view of another tensor, which mode "{self._mode}" would not change (use "copy")'
            )
        source = sources[boxes.index(member.box)]
        if source.device != member.tensor.device:
            raise ValueError(
                f"the version is on {source.device}, the tensor on {member.tensor.device}"
            )
        return Copy(member.name, member.tensor, source)


class _Part:
    """The tensors of one part of a version."""

    def __init__(self, table: Table, framework: str) -> None:
        self.tensors = table.tensors(converter(framework))
        #: By name, which elements it has, and the shape of the whole tensor.
        self.boxes = {
            name: (whole(each.shape), tuple(each.shape)) for name, each in self.tensors.items()
        }
        text = (table.metadata or {}).get(_SHARDS)
        if text is None:
            return
        try:
            for name, (shape, start) in decode_boxes(text).items():
                box = Box(start, tuple(self.tensors[name].shape))
                box.check(shape)
                self.boxes[name] = box, shape
        except (ValueError, KeyError) as error:
            refuse(table.segment.name, f"its parts of tensors are not valid ({error})")


class _WindowTable(Table):
    """Tensors at the addresses of a window that shows their segment."""

    def __init__(self, segment: Segment) -> None:
        super().__init__(segment)
        self.window = segment.window()

    def segment_of(self, entry: dict[str, Any]) -> Any:
        return self.window

    def tensors(self, convert: Callable[[Array], Any]) -> dict[str, Any]:
        return {name: self.tensor(name, convert) for name in self.names()}


def _layout(table: Table) -> list[Any]:
    """What two versions that are seen at the same addresses have in common."""
    keys = ("dtype", "shape", "data_offsets", "strides", "framework_dtype")
    tensors = [(name, table.entry(name)) for name in table.names()]
    places = [(name, [entry.get(key) for key in keys]) for name, entry in tensors]
    return [(table.metadata or {}).get(_SHARDS), *places]


class _Windows:
    """The parts of a version, at addresses that stay. ``segments``: of the first one."""

    def __init__(self, segments: Sequence[Segment], framework: str) -> None:
        tables = [_WindowTable(each) for each in segments]
        self._windows = [each.window for each in tables]
        self._layouts = [_layout(each) for each in tables]
        self.parts = [_Part(each, framework) for each in tables]

    def check(self, segments: Sequence[Segment]) -> None:
        """Raise ValueError for a version that does not fit to the addresses."""
        for each, layout in zip(segments, self._layouts, strict=True):
            if _layout(Table(each)) != layout:
                raise ValueError(
                    f"{each.name} has other tensors, or other places of them, than the version that was "
                    'mapped first (apply it with mode "copy", or with another subscriber)'
                )

    def show(self, segments: Sequence[Segment]) -> None:
        """Show all of the segments, or, if that fails, the former ones."""
        former = [each.segment for each in self._windows]
        changed: list[int] = []
        try:
            for number, segment in enumerate(segments):
                self._windows[number].show(segment)
                changed.append(number)
        except BaseException:
            for number in changed:
                self._windows[number].show(former[number])
            raise
        finally:
            _close(former)

    def close(self) -> None:
        for each in self._windows:
            each.close()


def members(tensors: Any) -> dict[str, Any]:
    """Tensors and parts of tensors by their names. Raises TypeError."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tensors, torch.nn.Module):
        state = tensors.state_dict(keep_vars=True)
        tensors = {name: each for name, each in state.items() if isinstance(each, torch.Tensor)}
    if not isinstance(tensors, Mapping):
        raise TypeError(f"{type(tensors).__name__} is neither a mapping nor a torch.nn.Module")
    for name in tensors:
        if type(name) is not str or name == "__metadata__":
            raise TypeError(f"{name!r} is not the name of a tensor")
    distributed = sys.modules.get("torch.distributed.tensor")
    result = {}
    for name, each in tensors.items():
        with naming(name):
            is_shard = distributed is not None and isinstance(each, distributed.DTensor)
            result[name] = shard_of(each) if is_shard else each
    return result


def _check_tied(copies: list[Copy]) -> None:
    """Raises ValueError if one tensor of the engine would get two contents."""
    known: dict[int, Copy] = {}
    for each in copies:
        other = known.setdefault(id(each.target), each)
        if other.source.data_ptr() != each.source.data_ptr():
            raise ValueError(
                f"{other.name} and {each.name} are one tensor of the engine, and two of the version"
            )


# ---- names ----


def _below(part: str) -> str:
    return f"/{part}" if part else ""


def _path(base: str, number: int, part: str) -> str:
    return f"{base}@{number}{_below(part)}"


def _number_of(path: str) -> int:
    found = re.search(r"@([1-9][0-9]*)(/|$)", path)
    if found is None:
        raise InvalidArgumentError(f'"{path}" is not of a version')
    return int(found[1])


def _identity(segment: Segment) -> tuple[bytes, int]:
    return segment.epoch, segment.generation


def _close(segments: Sequence[Segment]) -> None:
    for each in segments:
        each.close()


# ---- segments ----


def _fill(segment: Segment, leaves: list[tuple[Leaf, int, str]], stream: object) -> None:
    """Copy arrays of any library into a new segment. Blocks until it is done."""
    torch = sys.modules.get("torch")
    kind: Any = () if torch is None else torch.Tensor
    of_torch = []
    if stream is not None and not all(isinstance(leaf.source, kind) for leaf, _, _ in leaves):
        wait_for_stream(stream, segment)  # copies by other libraries are not on it
    for leaf, offset, name in leaves:
        if leaf.size == 0:
            continue
        with naming(name):
            into = segment.view(leaf.dtype, leaf.shape, offset=offset, strides=leaf.strides)
            if isinstance(leaf.source, kind):
                of_torch.append(Copy(name, converter("torch")(into), leaf.source))
            else:
                into.copy_from(leaf.source)
    enqueue(of_torch, stream, False).wait()


def _table_of(given: dict[str, Any]) -> tuple[str, list[tuple[Leaf, int, str]]]:
    """The table of tensors and parts of tensors, and their places in a segment."""
    if not given:
        raise ValueError("there are no tensors")
    shards = {name: each for name, each in given.items() if isinstance(each, Shard)}
    entries, leaves = place_arrays(
        {name: each.tensor if name in shards else each for name, each in given.items()}
    )
    if shards:
        entries = {"__metadata__": {_SHARDS: encode_boxes(shards)}} | entries
    return json.dumps(entries, separators=(",", ":")), leaves
