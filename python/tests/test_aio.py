# SPDX-License-Identifier: Apache-2.0
"""Waits of asyncio."""

from __future__ import annotations

import asyncio
import threading

import pytest

import gpushm


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 30))


def test_an_open_waits_on_the_descriptor(client):
    async def main():
        threads = threading.active_count()
        waits = [asyncio.create_task(client.open_async(f"s{i}")) for i in range(20)]
        await asyncio.sleep(0.05)
        assert not any(wait.done() for wait in waits)
        assert threading.active_count() == threads
        made = [client.create(f"s{i}", 8, device="host") for i in range(20)]
        for segment in made:
            segment.publish()
        opened = await asyncio.gather(*waits)
        assert [segment.name for segment in opened] == [f"s{i}" for i in range(20)]

    run(main())


def test_an_open_of_what_is_there_and_of_what_never_comes(client):
    async def main():
        client.create("here", 8, device="host", lifetime="persistent").publish()
        assert (await client.open_async("here", access="read-write")).access == "read-write"
        with pytest.raises(gpushm.NoSuchSegmentError):
            await client.open_async("never", timeout=0.05)
        # A name that begins with it is another one.
        wait = asyncio.create_task(client.open_async("name", timeout=20))
        await asyncio.sleep(0.02)
        client.create("name/longer", 8, device="host", lifetime="persistent").publish()
        await asyncio.sleep(0.02)
        assert not wait.done()
        wait.cancel()
        with pytest.raises(asyncio.CancelledError):
            await wait

    run(main())


def test_events(client):
    async def main():
        with client.subscribe("e/") as subscription:
            seen = []

            async def read():
                async for event in subscription:
                    seen.append((event.kind, event.name))
                    if event.kind == "removed":
                        return

            reader = asyncio.create_task(read())
            await asyncio.sleep(0)
            client.create("e/1", 8, device="host", lifetime="persistent").publish()
            client.remove("e/1")
            await reader
            assert seen == [("published", "e/1"), ("removed", "e/1")]

    run(main())


def test_timelines(client):
    async def main():
        own = client.create_timeline("t")
        opened = client.open_timeline("t")
        wait = asyncio.create_task(opened.wait_async(1))
        await asyncio.sleep(0.02)
        assert not wait.done()
        own.signal(1)
        await wait
        await opened.wait_async(1)
        with pytest.raises(gpushm.TimedOutError):
            await opened.wait_async(2, 0.02)
        wait = asyncio.create_task(opened.wait_async(2, None))
        await asyncio.sleep(0.02)
        wait.cancel()
        with pytest.raises(asyncio.CancelledError):
            await wait

    run(main())


def test_items_of_a_channel(client):
    async def main():
        producer = client.producer("c", 64, 4, device="host")
        consumer = client.consumer("c")
        seen = []

        async def read():
            async for item in consumer:
                with item:
                    seen.append(item.metadata)

        reader = asyncio.create_task(read())
        for i in range(5):
            (await asyncio.to_thread(producer.acquire, 5)).publish(b"%d" % i)
        while len(seen) < 5:
            await asyncio.sleep(0.005)
        producer.close()
        await reader
        assert seen == [b"0", b"1", b"2", b"3", b"4"]

    run(main())
