# SPDX-License-Identifier: Apache-2.0
"""Waits for asyncio.

Values of timelines, items and slots are tried in the event loop; what is not there yet is watched by
one thread for all tasks and loops (`_core.Poller`), which wakes the loop when a try is worth it. So a
task that is cancelled while it waits has taken nothing, and its timeout is of the loop's clock.

What may wait for the broker (connections, opens, a signaler or producer that has gone) has a thread of
this module, which grows as many as it needs and uses them again: never one of the event loop's
executor, whose few threads are also those of `getaddrinfo` and `to_thread`. A task that is cancelled
ends at once; its thread ends soon after, and what that has got goes to `unclaimed`.

Events of a subscription need no thread: they come by a descriptor.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import itertools
import os
import queue
import threading
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from gpushm import _core

if TYPE_CHECKING:
    from gpushm._core import (
        Client,
        Consumer,
        Item,
        Poller,
        Producer,
        Segment,
        Slot,
        Stop,
        Subscription,
        Timeline,
    )
    from gpushm._types import Access, Device, Event

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
        """Ends the watch: the future is no longer awaited."""
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


# ---- the poller ----

_keys = itertools.count(1)
#: Of each watch, the task's loop and what wakes it. Changed with the GIL only, one step at a time.
_watches: dict[int, asyncio.Future[None]] = {}
_poller: Poller | None = None
_poller_thread: threading.Thread | None = None


def _poll(poller: Poller) -> None:
    """In the poller's thread."""
    while not _has_ended:
        due: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
        for key in poller.wait():
            future = _watches.pop(key, None)
            if future is not None:
                due.setdefault(future.get_loop(), []).append(future)
        for loop, futures in due.items():
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(_wake_all, futures)


def _poller_of_process() -> Poller:
    global _poller, _poller_thread
    if _poller is None:
        with _lock:
            if _poller is None:
                made = _core.Poller()
                _poller_thread = threading.Thread(
                    target=_poll, args=(made,), name="gpushm-poller", daemon=True
                )
                _poller_thread.start()
                _poller = made
    return _poller


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _wake_all(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        _wake(future)


class _Until:
    """The end of a wait, by the loop's clock."""

    def __init__(self, timeout: float | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = None if timeout is None else self._loop.time() + timeout

    def left(self) -> float | None:
        return None if self._end is None else max(0.0, self._end - self._loop.time())

    async def first(self, future: asyncio.Future[None]) -> None:
        """Until the future is done, or the end."""
        timer = None if self._end is None else self._loop.call_at(self._end, _wake, future)
        try:
            await future
        finally:
            if timer is not None:
                timer.cancel()


async def _polled(
    attempt: Callable[[Poller, int, bool], Any],
    call: Callable[[float | None], Any],
    in_thread: Callable[[float | None], Coroutine[Any, Any, Any]],
    timeout: float | None,
    turn: Callable[[_Until], Coroutine[Any, Any, None]] | None = None,
) -> Any:
    """`attempt(poller, key, has_waited)` until it has a result, each time that its watch is due.
    `call(timeout)` is the same call, which waits; `in_thread(timeout)` is that in a thread."""
    if timeout is not None and not timeout >= 0:
        return call(timeout)  # raises ValueError
    until = _Until(timeout)
    loop = asyncio.get_running_loop()
    has_waited = False
    while True:
        if turn is not None:
            await turn(until)
        left = until.left()
        if _has_ended:
            return await in_thread(left)
        poller = _poller_of_process()
        key = next(_keys)
        future: asyncio.Future[None] = loop.create_future()
        _watches[key] = future
        result: Any = None
        try:
            result = attempt(poller, key, has_waited)
            if result is False and left != 0:
                await until.first(future)
        finally:
            if _watches.pop(key, None) is not None and result is False:
                poller.remove(key)
        if result is None:
            return await in_thread(left)
        if result is not False:
            return result
        if left == 0:
            return call(0.0)  # raises TimedOutError
        has_waited = True


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
    if _poller is not None and _poller_thread is not None:
        _poller.wake()
        _poller_thread.join(_END_SECONDS)


def _in_child() -> None:
    """Only the thread that has forked is in the child."""
    global _lock, _poller, _poller_thread
    _lock = threading.Lock()
    _idle.clear()
    _running.clear()
    _watches.clear()
    _poller = _poller_thread = None


atexit.register(_end)
os.register_at_fork(after_in_child=_in_child)

# ---- connections, opens, timelines ----


async def connect(socket: str | os.PathLike[str] | None, **options: Any) -> Client:
    return await _result_of(_Wait(lambda stop: _core.connect(socket, stop=stop, **options)))


async def client_open(
    client: Client, name: str, access: Access, timeout: float | None, device: Device | None
) -> Segment:
    def open_segment(stop: Stop) -> Segment:
        return client.open(name, access=access, timeout=timeout, device=device, stop=stop)

    return await _result_of(_Wait(open_segment))


async def client_subscribe(client: Client, prefix: str) -> Subscription:
    return await _result_of(_Wait(lambda _: client.subscribe(prefix)))


async def timeline_wait(timeline: Timeline, value: int, timeout: float | None) -> None:
    await _polled(
        lambda poller, key, again: _core.try_value(timeline, value, poller, key, again),
        lambda left: timeline.wait(value, left),
        lambda left: _result_of(_Wait(lambda stop: timeline.wait(value, left, stop=stop))),
        timeout,
    )


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


# The read of each loop and consumer that has a thread. The next one begins when that is done: an item
# that a cancelled read has taken comes before later ones.
_reads: dict[tuple[int, int], _Wait[Item | None]] = {}


async def consumer_next(consumer: Consumer, timeout: float | None) -> Item | None:
    name = id(asyncio.get_running_loop()), id(consumer)

    def unread(item: Item | None) -> None:
        if item is not None:
            _core.unread(item)

    async def turn(until: _Until) -> None:
        while (other := _reads.get(name)) is not None and until.left() != 0:
            await asyncio.wait((other.done,), timeout=until.left())

    async def in_thread(left: float | None) -> Item | None:
        wait: _Wait[Item | None] = _Wait(
            lambda stop: consumer.next(left, stop=stop),
            unclaimed=unread,
            at_end=lambda: _reads.pop(name, None) if _reads.get(name) is wait else None,
        )
        _reads[name] = wait
        return await _result_of(wait)

    item: Item | None = await _polled(
        lambda poller, key, again: _core.try_next(consumer, poller, key, again),
        consumer.next,
        in_thread,
        timeout,
        turn,
    )
    return item


async def producer_acquire(producer: Producer, timeout: float | None, stream: object) -> Slot:
    def acquire(left: float | None, stop: Stop | None = None) -> Slot:
        return producer.acquire(left, stream=stream, stop=stop)

    slot: Slot = await _polled(
        lambda poller, key, again: _core.try_acquire(producer, stream, poller, key, again),
        acquire,
        lambda left: _result_of(
            _Wait(lambda stop: acquire(left, stop), unclaimed=_core.Slot.abandon)
        ),
        timeout,
    )
    return slot


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
