# SPDX-License-Identifier: Apache-2.0
"""Waits of asyncio."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import os
import signal
import threading

import pytest

import gpushm


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 30))


def test_opens_wait_for_their_names(client):
    async def main():
        waits = [asyncio.create_task(client.open_async(f"s{i}")) for i in range(20)]
        await asyncio.sleep(0.05)
        assert not any(wait.done() for wait in waits)
        made = [client.create(f"s{i}", 8, device="host") for i in range(20)]
        for segment in made:
            segment.publish()
        opened = await asyncio.gather(*waits)
        assert [segment.name for segment in opened] == [f"s{i}" for i in range(20)]

    run(main())


def test_an_open_returns_at_once_or_ends_with_its_timeout(client):
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


def test_events_are_read_in_a_loop(client):
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


def test_waits_for_timelines_end_with_the_value_or_the_timeout(client):
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


def test_items_of_a_channel_are_read_in_a_loop(client):
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


def test_waits_leave_the_threads_of_the_loop_alone(client):
    async def main():
        loop = asyncio.get_running_loop()
        # One thread only, of which waits must not take any.
        loop.set_default_executor(concurrent.futures.ThreadPoolExecutor(1))
        own = client.create_timeline("t")
        opened = client.open_timeline("t")
        consumer_of = client.producer("c", 64, 2, device="host")
        consumer = client.consumer("c")
        waits = [asyncio.create_task(opened.wait_async(1, None)) for _ in range(40)]
        waits += [asyncio.create_task(client.open_async("s", timeout=None))]
        items = [asyncio.create_task(anext(aiter(consumer))) for _ in range(3)]
        await asyncio.sleep(0.05)
        await loop.getaddrinfo("localhost", 80)
        await asyncio.to_thread(int)
        with pytest.raises(gpushm.TimedOutError):
            await opened.wait_async(1, timeout=0.01)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(opened.wait_async(1, None), 0.01)
        own.signal(1)
        client.create("s", 8, device="host", lifetime="persistent").publish()
        await asyncio.gather(*waits)
        consumer_of.close()
        for each in await asyncio.gather(*items, return_exceptions=True):
            assert isinstance(each, StopAsyncIteration)

    run(main())


def test_a_broker_that_does_not_answer_does_not_stop_the_loop(broker, client):
    """A wait is cancelled at once, although its request is not."""

    async def main():
        made = await gpushm.connect_async(broker.socket, request_limit=20)
        broker.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, broker.process.pid, os.WSTOPPED)
        try:
            calls = [made.open_async("s", timeout=None), made.subscribe_async("s")]
            calls += [gpushm.connect_async(broker.socket, timeout=20)]
            tasks = [asyncio.create_task(each) for each in calls]
            await asyncio.sleep(0.05)
            for each in tasks:
                each.cancel()
            for each in await asyncio.gather(*tasks, return_exceptions=True):
                assert isinstance(each, asyncio.CancelledError)
        finally:
            broker.process.send_signal(signal.SIGCONT)
        with await made.subscribe_async("t/") as subscription:
            client.create("t/1", 8, device="host", lifetime="persistent").publish()
            assert (await anext(aiter(subscription))).name == "t/1"

    run(main())


def test_a_cancelled_read_loses_no_event(client):
    count = 100

    async def main():
        subscription = client.subscribe("e/")
        seen = []

        async def publish():
            for i in range(count):
                client.create(f"e/{i}", 8, device="host", lifetime="persistent").publish()
                await asyncio.sleep(0)

        async def read():
            while len(seen) < count:
                with contextlib.suppress(asyncio.TimeoutError):
                    seen.append((await asyncio.wait_for(anext(aiter(subscription)), 0.001)).name)

        # The others do not take its descriptor away.
        others = [asyncio.create_task(anext(aiter(client.subscribe("none")))) for _ in range(2)]
        await asyncio.gather(publish(), read())
        assert seen == [f"e/{i}" for i in range(count)]
        several = [asyncio.create_task(anext(aiter(subscription))) for _ in range(3)]
        await asyncio.sleep(0.01)
        subscription.close()
        for each in await asyncio.gather(*several, return_exceptions=True):
            assert isinstance(each, gpushm.InvalidArgumentError)
        for each in others:
            each.cancel()

    run(main())


def test_the_interpreter_may_end_while_threads_wait(start):
    child = start("""
        import asyncio, gpushm, sys
        client = gpushm.connect(sys.argv[1])
        timeline = client.create_timeline('t')
        loop = asyncio.new_event_loop()
        async def main():
            tasks.extend(asyncio.create_task(timeline.wait_async(1, None)) for _ in range(10))
            await asyncio.sleep(0.05)
        tasks = []
        loop.run_until_complete(main())
        print(sum(task.done() for task in tasks), flush=True)
        """)
    status, out, _ = child.end()
    assert (status, out) == (0, "0\n")


def test_cancelled_reads_lose_no_item(client):
    """A cancel comes at any point of a read: all items arrive, in order, and no slot is lost."""
    count = 300

    async def main():
        producer = client.producer("c", 64, 2, device="host")
        consumer = client.consumer("c")
        seen = []

        async def produce():
            for i in range(count):
                # Cancelled acquisitions abandon their slots.
                for pause in range(i % 3):
                    attempt = asyncio.create_task(producer.acquire_async(20))
                    for _ in range(pause):
                        await asyncio.sleep(0)
                    attempt.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        (await attempt).abandon()
                (await producer.acquire_async(20)).publish(b"%d" % i)

        async def consume():
            turn = 0
            while len(seen) < count:
                turn += 1
                read = asyncio.create_task(consumer.next_async(20))
                if turn % 2:
                    await asyncio.wait((read,), timeout=0.0005 * (turn % 5))
                else:
                    for _ in range(turn % 7):
                        await asyncio.sleep(0)
                read.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    with await read as item:
                        seen.append(int(item.metadata))

        await asyncio.gather(produce(), consume())
        assert seen == list(range(count))
        # Both slots are free.
        slots = [await producer.acquire_async(20) for _ in range(2)]
        for slot in slots:
            slot.abandon()
        with pytest.raises(gpushm.TimedOutError):
            await consumer.next_async(0.01)
        several = [asyncio.create_task(consumer.next_async(None)) for _ in range(3)]
        with pytest.raises(gpushm.TimedOutError):
            await consumer.next_async(0.01)
        producer.close()
        assert await asyncio.gather(*several) == [None] * 3
        assert consumer.ended

    run(main())


def threads_of_waits():
    return [each.name for each in threading.enumerate() if each.name == "gpushm-wait"]


def test_a_thousand_waits_need_one_thread(client):
    """More words than one thread can sleep on (127), several waits of each word, half of them cancelled."""

    async def main():
        own = [gpushm.create_local_timeline() for _ in range(200)]
        producer = client.producer("c", 64, 2, device="host")
        consumer = client.consumer("c")
        idle = threads_of_waits()
        waits = [
            asyncio.create_task(each.wait_async(value, None))
            for value in range(1, 6)
            for each in own
        ]
        reads = [asyncio.create_task(consumer.next_async(None)) for _ in range(20)]
        held = [await producer.acquire_async() for _ in range(2)]
        slots = [asyncio.create_task(producer.acquire_async(None)) for _ in range(20)]
        await asyncio.sleep(0.05)
        assert len(threads_of_waits()) <= len(idle)
        assert not any(each.done() for each in waits + reads + slots)
        for each in waits[::2] + reads[::2] + slots[::2]:
            each.cancel()
        for each in own:
            each.signal(4)
        await asyncio.wait(waits[:800], timeout=30)
        assert [each.cancelled() for each in waits[:800]] == [True, False] * 400
        assert not any(each.done() for each in waits[801::2])
        for each in own:
            each.signal(5)
        await asyncio.gather(*waits[1::2])
        # Neither items nor slots are lost: what is given back goes to those that are left.
        for each in held:
            each.publish()
        slots_left, reads_left = set(slots[1::2]), set(reads[1::2])
        for _ in range(8):
            done, _ = await asyncio.wait(reads_left, timeout=30, return_when="FIRST_COMPLETED")
            # In their order: the producer sees no item released before its predecessors.
            reads_left.remove(read := min(done, key=lambda each: each.result().number))
            read.result().release()
            done, _ = await asyncio.wait(slots_left, timeout=30, return_when="FIRST_COMPLETED")
            slots_left.remove(slot := done.pop())
            slot.result().publish()
        for each in await asyncio.gather(*reads_left):
            each.release()
        for each in slots_left:
            (await each).abandon()
        assert len(threads_of_waits()) <= len(idle)

    run(main())


def test_waits_end_also_on_a_kernel_without_futex_waitv(start):
    child = start("""
        import asyncio, ctypes, gpushm, os, struct, sys, threading
        libc = ctypes.CDLL(None, use_errno=True)
        # Load the number of the call; futex_waitv (449): ENOSYS (38); others: allowed.
        steps = [(0x20, 0, 0, 0), (0x15, 0, 1, 449), (0x06, 0, 0, 0x00050000 | 38), (0x06, 0, 0, 0x7FFF0000)]
        code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in steps))
        program = struct.pack("HP", len(steps), ctypes.addressof(code))
        assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
        assert libc.prctl(22, 2, program, 0, 0) == 0  # PR_SET_SECCOMP
        client = gpushm.connect(sys.argv[1])
        async def main():
            own = [client.create_timeline(f"t{i}") for i in range(3)]
            waits = [asyncio.create_task(each.wait_async(1, None)) for each in own]
            await asyncio.sleep(0.05)
            for each in own:
                threading.Timer(0.01, each.signal, (1,)).start()
            await asyncio.gather(*waits)
        asyncio.run(asyncio.wait_for(main(), 30))
        """)
    assert child.succeed() == ""


class FastLoop(asyncio.SelectorEventLoop):
    ahead = 0.0

    def time(self):
        return super().time() + self.ahead


def test_timeouts_are_by_the_clock_of_the_loop(client):
    opened = client.create_timeline("t")
    producer = client.producer("c", 64, 1, device="host")
    consumer = client.consumer("c")
    loop = FastLoop()

    async def main():
        slot = await producer.acquire_async(3600)
        waits = [
            asyncio.create_task(call(timeout=3600))
            for call in (
                functools.partial(opened.wait_async, 1),
                consumer.next_async,
                producer.acquire_async,
            )
        ]
        await asyncio.sleep(0.01)
        assert not any(each.done() for each in waits)
        loop.ahead += 3601
        for each in await asyncio.gather(*waits, return_exceptions=True):
            assert isinstance(each, gpushm.TimedOutError)
        for timeout in (0, 0.001):
            with pytest.raises(gpushm.TimedOutError):
                await consumer.next_async(timeout)
        for timeout in (-1, float("nan")):
            with pytest.raises(ValueError, match="timeout"):
                await opened.wait_async(1, timeout)
            with pytest.raises(ValueError, match="timeout"):
                await producer.acquire_async(timeout)
        slot.publish()
        (await consumer.next_async(0)).release()

    try:
        loop.run_until_complete(main())
    finally:
        loop.close()


def test_a_close_ends_the_waits(client):
    async def main():
        opened = client.create_timeline("t")
        producer = client.producer("c", 64, 1, device="host")
        consumer = client.consumer("c")
        slot = producer.acquire()
        waits = [
            asyncio.create_task(opened.wait_async(1, None)),
            asyncio.create_task(producer.acquire_async(None)),
            asyncio.create_task(consumer.next_async(None)),
        ]
        await asyncio.sleep(0.01)
        for each in (consumer, opened, producer):
            await asyncio.to_thread(each.close)
        for each in await asyncio.gather(*waits, return_exceptions=True):
            assert isinstance(each, gpushm.CancelledError)
        with pytest.raises(gpushm.InvalidArgumentError):
            await opened.wait_async(1, None)
        del slot

    run(main())


def test_requests_to_the_broker_do_not_end_a_wait(client, broker, start):
    """Hand-overs of a timeline, and producers that die while a task waits for their next item."""
    child = start("""
        import gpushm, sys
        producer = gpushm.connect(sys.argv[1]).producer("c", 64, 2, device="host")
        input()
        producer.acquire().publish(b"1")
        input()
        """)

    async def main():
        first = client.create_timeline("t")
        with gpushm.connect(broker.socket) as other:
            opened, next_own = other.open_timeline("t"), other.open_timeline("t")
            wait = asyncio.create_task(opened.wait_async(1, 30))
            consumer = await asyncio.to_thread(other.consumer, "c", timeout=30)
            read = asyncio.create_task(consumer.next_async(30))
            await asyncio.sleep(0.01)
            assert not wait.done()
            assert not read.done()
            first.hand_over()
            taken = await asyncio.to_thread(next_own.take_over, 30)
            taken.signal(1)
            await wait
            child.say("")
            with await read as item:
                assert item.metadata == b"1"
            read = asyncio.create_task(consumer.next_async(30))
            await asyncio.sleep(0.01)
            child.kill()
            with pytest.raises(gpushm.PeerDiedError):
                await read

    run(main())


def test_slots_are_acquired_when_consumers_that_share_the_work_release(client):
    async def main():
        producer = client.producer("c", 64, 4, device="host")
        consumers = [client.consumer("c", mode="share", held=1) for _ in range(2)]
        for _ in range(2):
            (await producer.acquire_async(20)).publish()
        items = [await each.next_async(20) for each in consumers]
        slot = asyncio.create_task(producer.acquire_async(20))
        await asyncio.sleep(0.01)
        assert not slot.done()
        items[1].release()
        (await slot).abandon()
        items[0].release()

    run(main())
