# SPDX-License-Identifier: Apache-2.0
"""Waits for asyncio. Opens and events wait on the descriptor of a subscription; timelines and
channels, which have none, in a thread of the event loop's executor."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, TypeVar

from gpushm import _core
from gpushm._errors import CLASSES, ErrorCode

if TYPE_CHECKING:
    from gpushm._core import Client, Consumer, Item, Segment, Subscription, Timeline
    from gpushm._types import Event

_Result = TypeVar("_Result")
_NO_SUCH_SEGMENT = CLASSES[ErrorCode.NO_SUCH_SEGMENT]
_CANCELLED = CLASSES[ErrorCode.CANCELLED]


@contextlib.asynccontextmanager
async def _readable(subscription: Subscription) -> AsyncIterator[asyncio.Event]:
    """An event that is set whenever the subscription has unread events."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    descriptor = subscription.fileno()
    loop.add_reader(descriptor, readable.set)
    try:
        yield readable
    finally:
        loop.remove_reader(descriptor)


async def client_open(
    client: Client, name: str, access: str, timeout: float | None, device: str | None
) -> Segment:
    loop = asyncio.get_running_loop()
    end = None if timeout is None else loop.time() + timeout

    def try_open() -> Segment:
        return client.open(name, access=access, device=device)

    with contextlib.suppress(_NO_SUCH_SEGMENT):
        return try_open()
    # Subscribed before the second try: no publication is missed between them.
    with client.subscribe(name) as subscription:
        async with _readable(subscription) as readable:
            while True:
                with contextlib.suppress(_NO_SUCH_SEGMENT):
                    return try_open()
                while True:
                    left = None if end is None else max(0.0, end - loop.time())
                    try:
                        await asyncio.wait_for(readable.wait(), left)
                    except asyncio.TimeoutError:
                        return try_open()  # with the error's text for what there is now
                    readable.clear()
                    kinds = {
                        event.kind for event in subscription.dispatch() if event.name in (name, "")
                    }
                    if kinds & {"published", "resync"}:
                        break


async def subscription_events(subscription: Subscription) -> AsyncIterator[Event]:
    async with _readable(subscription) as readable:
        while True:
            for event in subscription.dispatch():
                yield event
            await readable.wait()
            readable.clear()


async def _in_thread(call: Callable[[_core.Stop], _Result]) -> _Result:
    """Run a wait in a thread; end it if the task is cancelled."""
    stop = _core.Stop()
    wait = asyncio.get_running_loop().run_in_executor(None, call, stop)
    try:
        return await asyncio.shield(wait)
    except asyncio.CancelledError:
        stop.request()
        with contextlib.suppress(_CANCELLED):
            await wait
        raise


async def timeline_wait(timeline: Timeline, value: int, timeout: float | None) -> None:
    if timeline.try_wait(value):
        return
    await _in_thread(lambda stop: timeline.wait(value, timeout, stop=stop))


async def consumer_items(consumer: Consumer) -> AsyncIterator[Item]:
    while True:
        item = await _in_thread(lambda stop: consumer.next(None, stop=stop))
        if item is None:
            return
        yield item
