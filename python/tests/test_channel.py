# SPDX-License-Identifier: Apache-2.0
"""Channels between processes, on the host."""

from __future__ import annotations

import numpy as np
import pytest

import gpushm


def test_a_consumer_gets_each_item_in_order(client, start):
    producer = client.producer("frames", 4096, 4, device="host")
    child = start("""
        import gpushm, numpy, sys
        with gpushm.connect(sys.argv[1]).consumer('frames', timeout=20) as consumer:
            print('joined', flush=True)
            total = 0
            while (item := consumer.next(20)) is not None:
                with item:
                    array = numpy.from_dlpack(item.view('int32', (10,)))
                    assert not array.flags.writeable
                    assert (array == item.number).all(), (array, item.number)
                    assert item.metadata == b'%d' % item.number
                    total += item.number
            print(total, consumer.ended, flush=True)
        """)
    assert child.line() == "joined"
    for number in range(1, 101):
        with producer.acquire(20) as slot:
            assert slot.nbytes == 4096
            np.from_dlpack(slot.view("int32", 10))[:] = number
            assert slot.publish(b"%d" % number) == number
    assert producer.stats().published == 100
    producer.close()
    assert child.succeed() == "5050 True\n"


def test_a_slot_that_is_not_published_is_given_back(client):
    with client.producer("c", 64, 2, device="host") as producer:
        consumer = client.consumer("c")
        with producer.acquire(5) as slot:
            array = slot.view()
        assert np.from_dlpack(array).shape == (64,)
        with producer.acquire(5) as slot:
            assert slot.publish() == 1
        with pytest.raises(gpushm.InvalidArgumentError, match="the slot was given back"):
            slot.view()
        item = consumer.next(5)
        item.release()
        with pytest.raises(gpushm.InvalidArgumentError, match="the slot was given back"):
            item.release()
        with pytest.raises(gpushm.TimedOutError, match="has not published an item in time"):
            consumer.next(0.01)
        with producer.acquire(5) as slot:
            with pytest.raises(gpushm.SizeMismatchError):
                slot.view("int8", 65)


def test_a_full_channel_waits_for_a_released_slot(client):
    producer = client.producer("c", 64, 2, device="host")
    consumer = client.consumer("c")
    for _ in range(2):
        producer.acquire(5).publish()
    with pytest.raises(gpushm.TimedOutError, match="consumers have not released a slot"):
        producer.acquire(0.05)
    consumer.next(5).release()
    producer.acquire(5).publish()


def test_a_consumer_of_the_newest_item_skips_others(client):
    producer = client.producer("c", 64, 4, device="host")
    consumer = client.consumer("c", mode="latest")
    for _ in range(10):
        producer.acquire(5).publish()
    item = consumer.next(5)
    assert (item.number, item.skipped) == (10, 9)
    producer.acquire(5).publish()
    with pytest.raises(gpushm.TooManyRequestsError):
        consumer.next(1)
    item.release()
    with pytest.raises(ValueError, match="mode is"):
        client.consumer("c", mode="all")


def test_a_new_producer_continues_after_a_killed_one(client, start):
    code = """
        import gpushm, sys
        producer = gpushm.connect(sys.argv[1]).producer('c', 64, 4, device='host')
        print(producer.stats().is_continuation, flush=True)
        sys.stdin.readline()
        slot = producer.acquire(20)
        slot.publish(sys.argv[2].encode())
        print('published', flush=True)
        sys.stdin.readline()
        """
    child = start(code, "first")
    assert child.line() == "False"
    consumer = client.consumer("c", timeout=20)
    child.say("go")
    assert child.line() == "published"
    child.kill()
    with consumer.next(20) as item:
        assert item.metadata == b"first"
    with pytest.raises(gpushm.PeerDiedError):
        consumer.next(None)
    child = start(code, "second")
    assert child.line() == "True"
    child.say("go")
    with consumer.next(20) as item:
        assert item.metadata == b"second"


def test_a_consumer_with_resume_waits_for_the_next_producer(client, start):
    code = """
        import gpushm, sys
        producer = gpushm.connect(sys.argv[1]).producer('c', 64, 4, device='host')
        print('ready', flush=True)
        sys.stdin.readline()
        producer.acquire(20).publish(sys.argv[2].encode())
        print('published', flush=True)
        sys.stdin.readline()
        """
    child = start(code, "first")
    child.line()
    consumers = [client.consumer("c", timeout=20, resume=each) for each in (None, 60)]
    child.say("go")
    child.line()
    child.kill()
    for consumer in consumers:
        consumer.next(20).release()
    with pytest.raises(gpushm.PeerDiedError):
        consumers[0].next(0.01)
    with pytest.raises(gpushm.TimedOutError):
        consumers[1].next(0.01)
    child = start(code, "second")
    child.line()
    child.say("go")
    for consumer in consumers:
        with consumer.next(60) as item:
            assert item.metadata == b"second"


def test_arrays_outlive_their_channel(client):
    producer = client.producer("c", 64, 2, device="host")
    consumer = client.consumer("c")
    slot = producer.acquire(5)
    slot.view("uint8").copy_from(bytes(range(64)))
    slot.publish()
    item = consumer.next(5)
    array = np.from_dlpack(item.view())
    consumer.close()
    producer.close()
    assert array.tobytes() == bytes(range(64))


def test_slots_and_items_that_are_dropped_are_given_back(client):
    producer = client.producer("c", 64, 1, device="host")
    consumer = client.consumer("c")
    for _ in range(3):
        slot = producer.acquire(20)
        with pytest.warns(ResourceWarning, match='a slot of the channel "c" was dropped'):
            del slot
        assert producer.acquire(20).publish() >= 1
        item = consumer.next(20)
        with pytest.warns(ResourceWarning, match='an item of the channel "c" was dropped'):
            del item
    # After close() there is nothing to give back.
    slot = producer.acquire(20)
    producer.close()
    del slot


def test_a_used_slot_publishes_no_other_one(client):
    producer = client.producer("c", 64, 4, device="host")
    consumer = client.consumer("c")
    first, second = producer.acquire(5), producer.acquire(5)
    assert {first.index, second.index} == {0, 1}
    for slot, value in ((first, 1), (second, 2)):
        np.from_dlpack(slot.view())[:] = value
    assert second.publish() == 1
    for use in (second.publish, second.abandon, lambda: second.publish(cpu=True)):
        with pytest.raises(gpushm.InvalidArgumentError, match="the slot was given back"):
            use()
    assert first.publish() == 2
    for expected in (2, 1):
        with consumer.next(5) as item:
            assert item.view().tobytes() == bytes([expected]) * 64
    producer.close()
    with pytest.raises(gpushm.InvalidArgumentError):
        first.publish()


def test_an_array_keeps_the_memory_of_its_item(client, broker, start):
    """Also if the next producer has other slots (C11)."""
    code = """
        import gpushm, numpy, sys
        producer = gpushm.connect(sys.argv[1]).producer('c', 4096, 2, device='host')
        print('ready', flush=True)
        sys.stdin.readline()
        slot = producer.acquire(20)
        numpy.asarray(slot.view())[:] = int(sys.argv[2])
        slot.publish()
        print('published', flush=True)
        sys.stdin.readline()
        """
    child = start(code, "1")
    child.line()
    consumer = client.consumer("c", timeout=20, resume=None)
    child.say("go")
    child.line()
    item = consumer.next(20)
    first = np.from_dlpack(item.view())
    child.kill()
    item.release()
    client.remove("c")
    child = start(code, "2")
    child.line()
    child.say("go")
    child.line()
    item = consumer.next(60)
    second = np.from_dlpack(item.view())
    item.release()
    consumer.close()
    del consumer, item
    child.kill()
    assert (first.tobytes(), second.tobytes()) == (b"\1" * 4096, b"\2" * 4096)
