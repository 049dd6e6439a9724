# SPDX-License-Identifier: Apache-2.0
"""Tensors of PyTorch in messages of torch.multiprocessing, by the name of a segment.

:func:`install` makes code that exists already work between containers, and without CUDA IPC's
rules::

    import gpushm.reductions

    gpushm.reductions.install()
    queue.put(tensor)          # torch.multiprocessing, ForkingPickler, ZeroMQ

The receiver needs this package, and the same broker; it maps the memory, without a copy.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import time
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any

from gpushm import _core
from gpushm._errors import NoSuchSegmentError
from gpushm._frameworks import to_torch, view_as
from gpushm._shared import Place, open_place, place_of
from gpushm._torch import plain, shared_bytes, whole_storage

if TYPE_CHECKING:
    from gpushm._core import Client, Segment, Subscription

__all__ = ["UNCLAIMED_SECONDS", "collect", "install", "uninstall"]

#: How long memory is kept for a message that was not read, after the sender's own last tensor of
#: it is gone.
UNCLAIMED_SECONDS = 600.0


class _Sent:
    """Memory that was shared for messages."""

    def __init__(self, segment: Segment, own_uses: int) -> None:
        self.segment = segment
        #: Of the storage, by this object.
        self.own_uses = own_uses
        self.sent_at = time.monotonic()
        self.was_opened = False


class _State:
    """Of this process. A child of a fork begins with a new one."""

    def __init__(self, client: Client | None) -> None:
        self.lock = threading.Lock()
        # Without an import cache: a receiver gives the memory back with its last tensor.
        self.client = client or _core.connect(cache_bytes=0)
        self.prefix = f"torch/{secrets.token_hex(8)}/"
        self.number = 0
        #: By the address of PyTorch's storage object.
        self.sent: dict[int, _Sent] = {}
        self.events: Subscription | None = None


_guard = threading.Lock()
_given: Client | None = None
_state: _State | None = None
_previous: dict[type, Any] | None = None


def _forget_in_child() -> None:
    global _guard, _given, _state
    _guard, _given, _state = threading.Lock(), None, None


os.register_at_fork(after_in_child=_forget_in_child)


def _current() -> _State:
    global _state
    with _guard:
        if _state is None or _state.client.closed:
            _state = _State(_given if _given is not None and not _given.closed else None)
        return _state


def install(client: Client | None = None) -> None:
    """Let PyTorch's tensors travel as names from now on: those whose memory is a segment's (of
    ``get``, ``safe_open``, ``MemPool``, …), and all others on GPUs, whose storage is shared then.
    Other tensors travel as before. Again: no effect but another ``client``.

    A tensor of a segment is mapped for reading only where it is so here; others can be written by
    both sides. Memory that is shared for a message is kept as long as this process has a tensor of
    it, or a receiver does; after a message that is not read, for :data:`UNCLAIMED_SECONDS`.
    Sending waits for PyTorch's current stream, so that a receiver sees what was written before.

    ``client``: None connects, as :func:`gpushm.connect` without arguments does, at the first tensor;
    a receiver without ``install`` always does so.
    """
    global _given, _previous
    import torch
    import torch.multiprocessing  # registers its own reductions

    _given = client
    if _previous is None:
        table: dict[type, Any] = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
        kinds = (torch.Tensor, torch.nn.Parameter)
        _previous = {kind: table[kind] for kind in kinds}
        for kind in kinds:
            ForkingPickler.register(kind, _reduce)


def uninstall() -> None:
    """The reductions that were there before. What is shared stays so. Again: no effect."""
    global _previous
    for kind, reduce in (_previous or {}).items():
        ForkingPickler.register(kind, reduce)
    _previous = None


def collect() -> int:
    """Give back the memory that was shared for messages and is not used; returns how many
    storages are still shared. Each message does this, too. Blocks for round trips to the broker.
    """
    state = _state
    if state is None:
        return 0
    with state.lock:
        return _collect(state)


def _collect(state: _State) -> int:
    import torch

    events = state.events.dispatch() if state.events is not None else []
    opened = {event.name for event in events if event.kind == "opened"}
    now = time.monotonic()
    # After a resync it is not known which were opened: one that still waits for its receiver must
    # stay, and one that was opened and given back is kept as one that was not read.
    for key, each in list(state.sent.items()):
        each.was_opened = each.was_opened or each.segment.name in opened
        if torch._C._storage_Use_Count(key) > each.own_uses:
            each.sent_at = now
            continue
        is_unclaimed = now - each.sent_at > UNCLAIMED_SECONDS
        if (each.was_opened or is_unclaimed) and _has_no_reader(state, each.segment):
            if each.segment.state == "live":
                with contextlib.suppress(NoSuchSegmentError):
                    each.segment.unshare()
            each.segment.close()
            del state.sent[key]
    return len(state.sent)


def _has_no_reader(state: _State, segment: Segment) -> bool:
    try:
        return state.client.stat(segment.name).leases <= 1
    except NoSuchSegmentError:  # somebody has removed it
        return True


def _uses_of_python() -> int:
    """How many uses of a storage are its Python object's, which stays once it was asked for."""
    import torch

    one = torch.empty(1)
    return int(torch._C._storage_Use_Count(one.untyped_storage()._cdata)) - 1


def _share(tensor: Any) -> None:
    import torch

    state = _current()
    with state.lock:
        _collect(state)
        if state.events is None:
            state.events = state.client.subscribe(state.prefix)
        key = tensor.untyped_storage()._cdata
        if key in state.sent:
            return
        uses = torch._C._storage_Use_Count(key) - _uses_of_python()
        name = f"{state.prefix}{state.number}"
        state.number += 1
        segment = state.client.share(name, whole_storage(tensor))
        state.sent[key] = _Sent(segment, torch._C._storage_Use_Count(key) - uses)


def _reduce(tensor: Any) -> Any:
    assert _previous is not None
    import torch

    is_parameter = type(tensor) is torch.nn.Parameter
    is_ordinary = (
        (is_parameter or type(tensor) is torch.Tensor)
        and tensor.layout == torch.strided
        and tensor.device.type in ("cpu", "cuda")
        and tensor.numel() != 0
        and not (tensor.is_nested or tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
        and (tensor.is_leaf or not tensor.requires_grad)
    )
    found = shared_bytes(tensor) if is_ordinary else None
    if found is None and is_ordinary and tensor.device.type == "cuda":
        _share(tensor)
        found = shared_bytes(tensor)
    if found is None:
        kind = torch.nn.Parameter if isinstance(tensor, torch.nn.Parameter) else torch.Tensor
        return _previous[kind](tensor)
    if tensor.device.type == "cuda":
        torch.cuda.current_stream(tensor.device).synchronize()
    raw, dtype = plain(tensor)
    place = place_of(found)._replace(
        dtype=str(raw.dtype).removeprefix("torch."),
        shape=tuple(raw.shape),
        strides=tuple(raw.stride()),
    )
    return _rebuild, (tuple(place), dtype, tensor.requires_grad, is_parameter)


def _rebuild(
    place: tuple[Any, ...], dtype: str | None, requires_grad: bool, is_parameter: bool
) -> Any:
    import torch

    tensor = to_torch(open_place(_current().client, Place(*place)))
    if dtype is not None:
        tensor = view_as(tensor, dtype)
    if is_parameter:
        return torch.nn.Parameter(tensor, requires_grad=requires_grad)
    return tensor.requires_grad_() if requires_grad else tensor
