# SPDX-License-Identifier: Apache-2.0
"""The table of the tensors of a segment, or of several."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from gpushm import _core
from gpushm._errors import ErrorCode, InvalidArgumentError, from_parts
from gpushm._frameworks import DTYPES, to_torch, torch_table, view_as

if TYPE_CHECKING:
    from gpushm._core import Array, Client, Segment
    from gpushm._types import Access


def refuse(name: str, cause: str) -> NoReturn:
    """Raises ProtocolError: the table is another process's, and damaged or hostile."""
    code, step = int(ErrorCode.PROTOCOL_ERROR), "load or put it again under another name"
    message = f'read tensors "{name}": {cause} ({step})'
    raise from_parts(code, "read tensors", name, cause, step, message)


class Table:
    """The tensors of a segment. The library has checked that all of them are within it."""

    def __init__(self, segment: Segment) -> None:
        #: Those with tensors, and the one with the table.
        self.segments = [segment]
        self.segment = segment
        self._read = _core.read_tensor_table(segment)

    def names(self) -> list[str]:
        """The names of the tensors, in the order of the table."""
        return self._read.names()

    def __contains__(self, name: str) -> bool:
        return name in self._read

    def entry(self, name: str) -> dict[str, Any]:
        """Raises KeyError."""
        return self._read.entry(name)

    @property
    def metadata(self) -> dict[str, str] | None:
        return self._read.metadata()

    def segment_of(self, entry: dict[str, Any]) -> Segment:
        """The one of ``segments`` that has this tensor."""
        return self.segment

    def close(self) -> None:
        for each in self.segments:
            each.close()

    def tensor(self, name: str, convert: Callable[[Array], Any]) -> Any:
        """A framework's tensor, also of types that DLPack cannot express. Raises as array()."""
        entry = self.entry(name)
        result = convert(self._array(name, entry))
        wanted = entry.get("framework_dtype")
        if wanted is not None and convert is to_torch:
            result = view_as(result, wanted)
        return result

    def tensors(self, convert: Callable[[Array], Any]) -> dict[str, Any]:
        """All of them, in the order of their places. Raises as array()."""
        table = torch_table() if convert is to_torch else None
        types = {key: each for key, each in DTYPES.items() if key != "F4"}
        known: dict[str, Any]
        if table is None:
            known = {
                name: each if each is None else convert(each)
                for name, each in self._read.arrays(self.segment, types).items()
            }
        else:
            import torch

            if self.segment.device != "host":
                torch.cuda.init()
            types = {key: each for key, each in types.items() if hasattr(torch, each)}
            known = self._read.exchange(self.segment, types, table)
        # The others need Python code for each.
        for name in [name for name, each in known.items() if each is None]:
            known[name] = self.tensor(name, convert)
        return known

    def array(self, name: str) -> Array:
        """A view of the segment. Raises KeyError, ProtocolError, TypeError (F6)."""
        return self._array(name, self.entry(name))

    def _array(self, name: str, entry: dict[str, Any]) -> Array:
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
        """The names of the tensors in the order of their places."""
        return self.names()


#: Metadata of a segment that says where other segments have the tensors.
SHARED = b'{"format":"gpushm-shared/1"}'


class SharedTable(Table):
    """Tensors in several segments of one process, which ``share`` has described in a segment."""

    def __init__(
        self,
        segment: Segment,
        client: Client,
        access: Access,
        device: str | None,
        timeout: float | None,
    ) -> None:
        self.segment = segment
        #: Number 0 is the one with the description.
        self.segments = [segment]
        try:
            content = json.loads(segment.read())
            self._entries: dict[str, dict[str, Any]] = dict(content["tensors"])
            self._metadata: dict[str, str] | None = self._entries.pop("__metadata__", None)
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
        for entry in self._entries.values():
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

    def names(self) -> list[str]:
        return list(self._entries)

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def entry(self, name: str) -> dict[str, Any]:
        return self._entries[name]

    @property
    def metadata(self) -> dict[str, str] | None:
        return self._metadata

    def segment_of(self, entry: dict[str, Any]) -> Segment:
        number: int = entry["segment"]
        return self.segments[number]

    def offset_keys(self) -> list[str]:
        return sorted(self._entries, key=self._place)

    def tensors(self, convert: Callable[[Array], Any]) -> dict[str, Any]:
        return {name: self.tensor(name, convert) for name in self.offset_keys()}

    def _place(self, name: str) -> tuple[int, int, int]:
        entry = self._entries[name]
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
    access: Access = "read",
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
