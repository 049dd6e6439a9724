# SPDX-License-Identifier: Apache-2.0
"""Parts of tensors, and which parts of others they consist of. Pure: no memory is touched."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

__all__ = [
    "Box",
    "Piece",
    "Shard",
    "decode_boxes",
    "encode_boxes",
    "pieces_of",
    "shard_of",
    "whole",
]


class Shard:
    """A part of a larger tensor, for :class:`WeightPublisher` and :class:`WeightSubscriber`.

    ``tensor``: the part, also a view of a larger one. ``shape``: of the whole tensor. ``start``: where
    the first element of ``tensor`` is in it, for each dimension. Raises ValueError if the part is
    not within the whole.
    """

    __slots__ = ("shape", "start", "tensor")

    def __init__(self, tensor: Any, shape: Sequence[int], start: Sequence[int]) -> None:
        self.tensor = tensor
        self.shape = tuple(int(each) for each in shape)
        self.start = tuple(int(each) for each in start)
        Box(self.start, tuple(tensor.shape)).check(self.shape)

    def __repr__(self) -> str:
        part = tuple(self.tensor.shape)
        return f"<gpushm.Shard {part} at {self.start} of {self.shape}>"


def shard_of(tensor: Any) -> Shard:
    """What this process has of a DTensor of PyTorch. Raises TypeError for placements that do not say
    where its elements are: partial sums, and strided shards.
    """
    mesh = tensor.device_mesh
    start, shape = [0] * tensor.ndim, list(tensor.shape)
    for number, placement in enumerate(tensor.placements):
        if placement.is_replicate():
            continue
        if type(placement).__name__ != "Shard":
            raise TypeError(f"a DTensor with the placement {placement} (redistribute it first)")
        dim = placement.dim % tensor.ndim
        # As torch.chunk divides it.
        count = -(-shape[dim] // mesh.size(number))
        begin = min(count * mesh.get_local_rank(number), shape[dim])
        start[dim] += begin
        shape[dim] = min(count, shape[dim] - begin)
    local = tensor.to_local()
    if list(local.shape) != shape:
        raise TypeError(f"a DTensor of which {tuple(local.shape)} is here, and not {tuple(shape)}")
    return Shard(local, tuple(tensor.shape), start)


class Box(NamedTuple):
    """Elements of a tensor: a range of each dimension."""

    start: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def check(self, whole_shape: tuple[int, ...]) -> None:
        """Raise ValueError unless it is within a tensor of this shape."""
        if not len(self.start) == len(self.shape) == len(whole_shape):
            raise ValueError(
                f"a part of shape {self.shape} at {self.start} has other dimensions than {whole_shape}"
            )
        for begin, count, all_of_it in zip(self.start, self.shape, whole_shape, strict=True):
            if begin < 0 or count < 0 or begin + count > all_of_it:
                raise ValueError(
                    f"a part of shape {self.shape} at {self.start} is not within {whole_shape}"
                )

    def common(self, other: Box) -> Box | None:
        """The elements that both have; None: there are none."""
        start, shape = [], []
        for a, m, b, n in zip(self.start, self.shape, other.start, other.shape, strict=True):
            begin, end = max(a, b), min(a + m, b + n)
            if begin >= end:
                return None
            start.append(begin)
            shape.append(end - begin)
        return Box(tuple(start), tuple(shape))

    def index_of(self, part: Box) -> tuple[Any, ...]:
        """What gives ``part`` as a view of a tensor that has these elements."""
        ranges = zip(self.start, part.start, part.shape, strict=True)
        return (*(slice(at - first, at - first + count) for first, at, count in ranges), ...)


def whole(shape: Sequence[int]) -> Box:
    return Box((0,) * len(shape), tuple(shape))


class Piece(NamedTuple):
    """Elements that are copied from one part to another."""

    #: Which of the parts has them.
    source: int
    source_index: tuple[Any, ...]
    target_index: tuple[Any, ...]


def pieces_of(target: Box, sources: Sequence[Box]) -> list[Piece]:
    """Cover ``target`` with parts of the same tensor, each element once.

    Of equal parts, as replicas of a trainer publish, the first one is used. Raises ValueError if
    elements are missing, or parts overlap otherwise: they could differ.
    """
    pieces: list[Piece] = []
    used: dict[Box, int] = {}
    for number, source in enumerate(sources):
        if source in used:
            continue
        common = target.common(source)
        if common is None:
            continue
        for other in used:
            if source.common(other) is not None:
                raise ValueError(
                    f"parts overlap: {source.shape} at {source.start}, {other.shape} at {other.start}"
                )
        used[source] = number
        pieces.append(Piece(number, source.index_of(common), target.index_of(common)))
    covered = sum(math.prod(s.stop - s.start for s in each.target_index[:-1]) for each in pieces)
    if covered != target.size:
        raise ValueError(f"{target.size - covered} of {target.size} elements are missing")
    return pieces


def encode_boxes(shards: Mapping[str, Shard]) -> str:
    """For the metadata of a table of tensors: by name, the shape of the whole, and the start."""
    places = {name: [each.shape, each.start] for name, each in shards.items()}
    return json.dumps(places, separators=(",", ":"))


def decode_boxes(text: str) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
    """Raises ValueError for a text that `encode_boxes` cannot have made: another process's."""
    try:
        places = json.loads(text)
    except RecursionError as error:
        raise ValueError("its parts of tensors are nested too deeply") from error
    if type(places) is not dict:
        raise ValueError("its parts of tensors are not an object")
    result = {}
    for name, each in places.items():
        if (
            type(each) is not list
            or len(each) != 2
            or any(type(numbers) is not list for numbers in each)
            or any(type(number) is not int for numbers in each for number in numbers)
        ):
            raise ValueError(f'the part of the tensor "{name}" is not valid')
        result[name] = tuple(each[0]), tuple(each[1])
    return result
