# SPDX-License-Identifier: Apache-2.0
"""Channels between processes, on the host."""

from __future__ import annotations

import numpy as np
import pytest

import gpushm


def test_each_item_in_order(client, start):
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
            assert (slot.number, slot.nbytes) == (number, 4096)
            np.from_dlpack(slot.view("int32", 10))[:] = number
            slot.publish(b"%d" % number)
    assert producer.stats().published == 100
    producer.close()
    assert child.succeed() == "5050 True\n"


def test_a_slot_that_is_not_published(client):
    with client.producer("c", 64, 2, device="host") as producer:
        consumer = client.consumer("c")
        with producer.acquire(5) as slot:
            array = slot.view()
        assert np.from_dlpack(array).shape == (64,)
        with producer.acquire(5) as slot:
            assert slot.number == 1
            with pytest.raises(gpushm.InvalidArgumentError):
                producer.acquire(0)
            slot.publish()
        with pytest.raises(gpushm.InvalidArgumentError, match="the slot was given back"):
            slot.view()
        item = consumer.next(5)
        item.release()
        item.release()
        with pytest.raises(gpushm.TimedOutError, match="has not published an item in time"):
            consumer.next(0.01)
        with pytest.raises(gpushm.SizeMismatchError):
            producer.acquire(5).view("int8", 65)


def test_a_full_channel(client):
    producer = client.producer("c", 64, 2, device="host")
    consumer = client.consumer("c")
    for _ in range(2):
        producer.acquire(5).publish()
    with pytest.raises(gpushm.TimedOutError, match="consumers have not released a slot"):
        producer.acquire(0.05)
    consumer.next(5).release()
    producer.acquire(5).publish()


def test_the_newest_item(client):
    producer = client.producer("c", 64, 4, device="host")
    consumer = client.consumer("c", mode="latest")
    for _ in range(10):
        producer.acquire(5).publish()
    item = consumer.next(5)
    assert (item.number, item.skipped) == (10, 9)
    producer.acquire(5).publish()
    with pytest.raises(gpushm.TooManyRequestsError):
        consumer.next(1)
    with pytest.raises(ValueError, match="mode is"):
        client.consumer("c", mode="all")


def test_a_producer_that_is_killed_and_its_successor(client, start):
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
        consumer.next(0.5)
    child = start(code, "second")
    assert child.line() == "True"
    child.say("go")
    with consumer.next(20) as item:
        assert item.metadata == b"second"


def test_arrays_outlive_their_channel(client):
    producer = client.producer("c", 64, 2, device="host")
    consumer = client.consumer("c")
    slot = producer.acquire(5)
    slot.view("uint8").copy_from(bytes(range(64)))
    slot.publish()
    array = np.from_dlpack(consumer.next(5).view())
    consumer.close()
    producer.close()
    assert array.tobytes() == bytes(range(64))
