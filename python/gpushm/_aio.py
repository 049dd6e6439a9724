# SPDX-License-Identifier: Apache-2.0
"""Waits for asyncio.

Each wait has a thread of this module, which grows as many as it needs and uses them again: never one
of the event loop's executor, whose few threads are also those of `getaddrinfo` and `to_thread`.
Events of a subscription need none: they come by a descriptor. A task that is cancelled ends at once;
its thread ends soon after, and what that has got goes to `unclaimed`.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from gpushm import _core

if TYPE_CHECKING:
    from gpushm._core import (
        Client,
        Consumer,
        Item,
        Producer,
        Segment,
        Slot,
        Stop,
        Subscription,
        Timeline,
    )
    from gpushm._types import Access, Event

_Result = TypeVar("_Result")

# ---- threads ----

# For what waits when the interpreter ends; requests to a broker that does not answer take longer.
_END_SECONDS = 5.0
_MAX_IDLE = 8

_lock = threading.Lock()
_idle: list[_Thread] = []
_running: set[_Wait[Any]] = set()
_has_ended = False


class _Thread(threading.Thread):
    """Runs one wait after the other. A daemon: those that wait at the end are stopped (_end)."""

    def __init__(self) -> None:
        super().__init__(name="gpushm-wait", daemon=True)
        self.waits: queue.SimpleQueue[_Wait[Any]] = queue.SimpleQueue()

    def run(self) -> None:
        while True:
            wait = self.waits.get()
            wait.run()
            with _lock:
                _running.discard(wait)
                is_idle = len(_idle) < _MAX_IDLE
                if is_idle:
                    _idle.append(self)
            wait.has_ended.set()
            if not is_idle:
                return
            del wait


class _Wait(Generic[_Result]):
    """A call of a thread, and the future of its result. `at_end` is called in the event loop when
    the thread is done, before the future is."""

    def __init__(
        self,
        call: Callable[[Stop], _Result],
        unclaimed: Callable[[_Result], object] | None = None,
        at_end: Callable[[], object] | None = None,
    ) -> None:
        self.stop = _core.Stop()
        self.has_ended = threading.Event()
        self._call: Callable[[Stop], _Result] | None = call
        self._unclaimed = unclaimed
        self._at_end = at_end
        self._is_abandoned = False
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[_Result] = self._loop.create_future()
        #: When the thread is done, also if the wait was abandoned.
        self.done: asyncio.Future[None] = self._loop.create_future()
        with _lock:
            if _has_ended:
                self.stop.request()
            _running.add(self)
            thread = _idle.pop() if _idle else None
        if thread is None:
            thread = _Thread()
            thread.start()
        thread.waits.put(self)

    def run(self) -> None:
        """In the thread."""
        call, self._call = self._call, None
        assert call is not None
        result: _Result | None = None
        failure: BaseException | None = None
        try:
            result = call(self.stop)
        except BaseException as error:
            failure = error
        try:
            self._loop.call_soon_threadsafe(self._end, result, failure)
        except RuntimeError:  # the loop is closed
            if self._at_end is not None:
                self._at_end()
            self._give_up(result, failure)

    def abandon(self) -> None:
        """Nothing waits for the future any more."""
        self.stop.request()
        self._is_abandoned = True
        if self.future.done():
            failure = self.future.exception()
            self._give_up(self.future.result() if failure is None else None, failure)

    def _end(self, result: Any, failure: BaseException | None) -> None:
        if self._at_end is not None:
            self._at_end()
        _wake(self.done)
        if self._is_abandoned:
            self._give_up(result, failure)
        elif failure is not None:
            self.future.set_exception(failure)
        else:
            self.future.set_result(result)

    def _give_up(self, result: Any, failure: BaseException | None) -> None:
        if failure is None and self._unclaimed is not None:
            self._unclaimed(result)


async def _result_of(wait: _Wait[_Result]) -> _Result:
    try:
        await asyncio.wait((wait.future,))
    except BaseException:  # asyncio.CancelledError; GeneratorExit of a loop that is closed
        wait.abandon()
        raise
    return wait.future.result()


def _end() -> None:
    """A thread that comes back from the library while the interpreter ends would end the process."""
    global _has_ended
    with _lock:
        _has_ended = True
        waits = list(_running)
    for each in waits:
        each.stop.request()
    for each in waits:
        each.has_ended.wait(_END_SECONDS)


def _in_child() -> None:
    """Only the thread that has forked is in the child."""
    global _lock
    _lock = threading.Lock()
    _idle.clear()
    _running.clear()


atexit.register(_end)
os.register_at_fork(after_in_child=_in_child)

# ---- connections, opens, timelines ----


async def connect(socket: str | os.PathLike[str] | None, **options: Any) -> Client:
    return await _result_of(_Wait(lambda stop: _core.connect(socket, stop=stop, **options)))


async def client_open(
    client: Client, name: str, access: Access, timeout: float | None, device: str | None
) -> Segment:
    def open_segment(stop: Stop) -> Segment:
        return client.open(name, access=access, timeout=timeout, device=device, stop=stop)

    return await _result_of(_Wait(open_segment))


async def client_subscribe(client: Client, prefix: str) -> Subscription:
    return await _result_of(_Wait(lambda _: client.subscribe(prefix)))


async def timeline_wait(timeline: Timeline, value: int, timeout: float | None) -> None:
    if not timeline.try_wait(value):
        await _result_of(_Wait(lambda stop: timeline.wait(value, timeout, stop=stop)))


# ---- events ----

# Of each subscription, the tasks that wait for its descriptor.
_waiting: dict[int, set[asyncio.Future[None]]] = {}


async def _readable(subscription: Subscription) -> None:
    """Until there may be an event, or the subscription was closed."""
    loop = asyncio.get_running_loop()
    # One of its own: several tasks may wait, and close() may come first.
    descriptor = os.dup(subscription.fileno())
    future: asyncio.Future[None] = loop.create_future()
    waiting = _waiting.setdefault(id(subscription), set())
    waiting.add(future)
    try:
        loop.add_reader(descriptor, _wake, future)
        try:
            await future
        finally:
            loop.remove_reader(descriptor)
    finally:
        os.close(descriptor)
        waiting.discard(future)
        if not waiting:
            _waiting.pop(id(subscription), None)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def subscription_closed(subscription: Subscription) -> None:
    """In any thread."""
    for future in tuple(_waiting.get(id(subscription), ())):
        with contextlib.suppress(RuntimeError):  # its loop is closed
            future.get_loop().call_soon_threadsafe(_wake, future)


class Events:
    """One event after the other. A read that is cancelled has taken none."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription

    def __aiter__(self) -> Events:
        return self

    async def __anext__(self) -> Event:
        while True:
            event = self._subscription.next(0)
            if event is not None:
                return event
            await _readable(self._subscription)


# ---- channels ----


# The read in flight of each loop and consumer. The next one begins when its thread is done: an item
# that a cancelled read has taken comes before later ones.
_reads: dict[tuple[int, int], _Wait[Item | None]] = {}


async def consumer_next(consumer: Consumer, timeout: float | None) -> Item | None:
    loop = asyncio.get_running_loop()
    key = id(loop), id(consumer)
    end = None if timeout is None else loop.time() + timeout
    while (other := _reads.get(key)) is not None:
        left = None if end is None else max(0.0, end - loop.time())
        await asyncio.wait((other.done,), timeout=left)
        if end is not None and loop.time() >= end:
            break
    left = None if end is None else max(0.0, end - loop.time())

    def unread(item: Item | None) -> None:
        if item is not None:
            _core.unread(item)

    wait: _Wait[Item | None] = _Wait(
        lambda stop: consumer.next(left, stop=stop),
        unclaimed=unread,
        at_end=lambda: _reads.pop(key, None) if _reads.get(key) is wait else None,
    )
    _reads[key] = wait
    return await _result_of(wait)


async def producer_acquire(producer: Producer, timeout: float | None, stream: object) -> Slot:
    return await _result_of(
        _Wait(
            lambda stop: producer.acquire(timeout, stream=stream, stop=stop),
            unclaimed=_core.Slot.abandon,
        )
    )


class Items:
    """One item after the other. A read that is cancelled loses none."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    def __aiter__(self) -> Items:
        return self

    async def __anext__(self) -> Item:
        item = await consumer_next(self._consumer, None)
        if item is None:
            raise StopAsyncIteration
        return item
