# SPDX-License-Identifier: Apache-2.0
"""Streams that wait for timelines: frameworks, channels, graphs."""

from __future__ import annotations

import asyncio
import ctypes
import pickle
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import gpushm
from gpushm._core import exchange

import dlpack
from gpus import MIB, Graph
from support import wait_until


def test_the_stream_of_the_consumer_waits_and_the_host_does_not(client, segment, driver):
    timeline = client.create_timeline("t")
    array = segment.view("float32", 8, ready=(timeline, 1))
    stream = driver.stream()
    started = time.monotonic()
    capsule = array.__dlpack__(max_version=(1, 0), stream=stream)
    assert time.monotonic() - started < 5
    time.sleep(0.05)
    assert driver.is_busy(stream)
    # The host may not read it, and says so at once.
    with pytest.raises(BufferError, match="is not ready"):
        array.tobytes()
    with pytest.raises(BufferError, match="is not ready"):
        array.__dlpack__(max_version=(1, 0), dl_device=(1, 0))
    managed = ctypes.POINTER(dlpack.ManagedVersioned)()
    with pytest.raises(BufferError, match="is not ready"):
        dlpack.exchange_table(gpushm.Array).from_object(array, ctypes.byref(managed))
    # A stream that waits for nothing.
    other = driver.stream()
    array.__dlpack__(max_version=(1, 0), stream=-1)
    assert not driver.is_busy(other)
    timeline.signal(1)
    driver.synchronize(stream)
    timeline.check()
    del capsule
    array.tobytes()


def test_the_default_stream_waits_for_the_cuda_array_interface(client, segment, driver):
    timeline = client.create_timeline("t")
    array = segment.view("float32", 8, ready=(timeline, 1))
    assert array.__cuda_array_interface__["stream"] == 1
    time.sleep(0.05)
    assert driver.is_busy(0)
    timeline.signal(1)
    driver.synchronize(0)
    assert array.__cuda_array_interface__["stream"] is None


def test_the_stream_of_a_librarys_table_waits(client, segment, driver):
    timeline = client.create_timeline("t")
    array = segment.view("float32", 8, ready=(timeline, 1))
    stream = driver.stream()

    def current_stream(kind, ordinal, result):
        assert (kind, ordinal) == (2, 0)
        result[0] = stream
        return 0

    table = dlpack.ExchangeTable.from_buffer_copy(dlpack.exchange_table(gpushm.Array))
    table.current_stream = dlpack.CurrentStream(current_stream)
    made = exchange(array, dlpack.table_capsule(table))
    assert (made.data_ptr, made.readonly) == (array.data_ptr, False)
    assert driver.is_busy(stream)
    timeline.signal(1)
    driver.synchronize(stream)
    exchange(array, dlpack.table_capsule(table))  # no wait
    assert not driver.is_busy(stream)


def test_a_tensor_may_be_released_while_its_stream_waits(client, broker, segment, driver):
    with gpushm.connect(broker.socket) as other:
        timeline = other.create_timeline("t")
        stream = driver.stream()
        array = segment.view("float32", 8, ready=(client.open_timeline("t"), 1))
        address = dlpack.take(array.__dlpack__(max_version=(1, 0), stream=stream))
        del array
        dlpack.delete(address)
        assert driver.is_busy(stream)
        timeline.signal(1)
        driver.synchronize(stream)
        client.open_timeline("t").close()  # closes it: no stream waits for it


def test_too_many_waiting_streams_are_refused_at_once(client, segment, driver):
    timeline = client.create_timeline("t")
    array = segment.view("float32", 8, ready=(timeline, 1))
    streams = [driver.stream() for _ in range(40)]
    capsules = []
    started = time.monotonic()

    def export_for_all() -> None:
        for stream in streams:
            capsules.append(array.__dlpack__(max_version=(1, 0), stream=stream))

    with pytest.raises(gpushm.TooManyWaitsError):
        export_for_all()
    assert time.monotonic() - started < 5
    assert len(capsules) >= 4
    timeline.signal(1)
    for stream in streams:
        driver.synchronize(stream)


def test_streams_of_other_libraries_signal_and_wait(client, driver):
    timeline = client.create_timeline("t")
    opened = client.open_timeline("t")
    first, second = driver.stream(), driver.stream()

    class Torch:
        cuda_stream = first

    class Core:
        def __cuda_stream__(self):
            return 0, second

    timeline.prepare(first)
    opened.wait(1, stream=Core())
    assert driver.is_busy(second)
    timeline.signal(1, stream=Torch())
    driver.synchronize(second)
    opened.check()
    opened.wait(1, 5)


def test_copies_come_after_the_stream_that_they_name(client, segment, driver):
    timeline = client.create_timeline("t")
    stream = driver.stream()
    client.open_timeline("t").wait(1, stream=stream)
    address = segment.view("uint8", 4).__cuda_array_interface__["data"][0]
    arguments = ctypes.c_uint64(address), ctypes.c_ubyte(5), ctypes.c_size_t(4)
    driver.check("cuMemsetD8Async", *arguments, ctypes.c_void_p(stream))
    segment.write(b"\x01" * 4)
    assert segment.read(0, 4) == b"\x01" * 4
    assert driver.is_busy(stream)  # none of them has waited for it
    with ThreadPoolExecutor() as threads:
        copy = threads.submit(segment.read, 0, 4, stream=stream)
        timeline.signal(1)
        assert copy.result(60) == b"\x05" * 4
    segment.fill(6, stream=stream)
    segment.write(b"\x07", stream=stream)
    assert segment.read(0, 4, stream=stream) == b"\x07\x06\x06\x06"


def test_a_dead_signaler_releases_the_streams_that_wait(client, segment, driver, start):
    child = start("""
        import gpushm, sys
        timeline = gpushm.connect(sys.argv[1]).create_timeline('t')
        print('ready', flush=True)
        sys.stdin.readline()
        """)
    assert child.line() == "ready"
    timeline = client.open_timeline("t")
    array = segment.view("float32", 8, ready=(timeline, 1))
    stream = driver.stream()
    array.__dlpack__(max_version=(1, 0), stream=stream)
    assert driver.is_busy(stream)
    child.kill()
    wait_until(lambda: not driver.is_busy(stream), "the stream is released")
    with pytest.raises(gpushm.PeerDiedError):
        timeline.check()
    with pytest.raises(gpushm.PeerDiedError):
        array.__dlpack__(max_version=(1, 0), stream=stream)


def test_items_of_a_channel_are_filled_and_read_on_streams(client, driver):
    producer = client.producer("c", MIB, 4, device="0")
    consumer = client.consumer("c", device="0")
    fill, read = driver.stream(), driver.stream()
    for number in range(1, 20):
        slot = producer.acquire(20, stream=fill)
        assert slot.view("float32").__dlpack_device__() == (2, 0)
        assert slot.publish(b"m") == number
        with consumer.next(20, stream=read) as item:
            assert (item.number, item.metadata) == (number, b"m")
            assert item.view().readonly
    driver.synchronize(read)
    consumer.check()


def test_an_item_is_released_when_its_stream_has_read_it(client, driver):
    """At the end of a `with` statement, and when it is dropped, as by release() without arguments."""
    producer = client.producer("c", MIB, 2, device="0")
    consumer = client.consumer("c", device="0")
    read = driver.stream()
    go = client.create_timeline("go")
    producer.acquire(20).publish()
    producer.acquire(20).publish()
    client.open_timeline("go").wait(1, stream=read)
    with consumer.next(20, stream=read):
        pass
    item = consumer.next(20, stream=read)
    with pytest.warns(ResourceWarning, match='of the channel "c" was dropped'):
        del item
    with pytest.raises(gpushm.TimedOutError):
        producer.acquire(0.05)
    go.signal(1)
    slots = [producer.acquire(20), producer.acquire(20)]
    # The CPU gives back what a stream was to use with cpu=True only.
    slots[0].publish(cpu=True)
    slots[1].abandon()
    item = consumer.next(20, stream=read)
    with pytest.raises(ValueError, match="not both"):
        item.release(stream=read, cpu=True)
    item.release(cpu=True)
    producer.acquire(20).publish()
    driver.synchronize(read)


def test_another_stream_waits_for_the_item_that_it_reads(client, driver):
    producer = client.producer("c", MIB, 2, device="0")
    consumer = client.consumer("c", device="0")
    fill, read, other = driver.stream(), driver.stream(), driver.stream()
    go = client.create_timeline("go")
    slot = producer.acquire(20, stream=fill)
    client.open_timeline("go").wait(1, stream=fill)
    slot.publish()
    item = consumer.next(20, stream=read)
    array = item.view()
    array.__dlpack__(max_version=(1, 0), stream=other)
    assert driver.is_busy(other)
    assert array.__cuda_array_interface__["stream"] == 1
    assert driver.is_busy(read)
    go.signal(1)
    driver.synchronize(other)
    driver.synchronize(read)
    consumer.check()
    item.release(stream=other)
    with pytest.raises(gpushm.InvalidArgumentError):
        array.__dlpack__(max_version=(1, 0), stream=other)
    driver.synchronize(other)


@pytest.mark.parametrize("device", ["0", "host"])
def test_the_cpu_reads_an_item_of_a_stream_when_it_is_complete(client, driver, device):
    producer = client.producer("c", MIB, 2, device=device)
    consumer = client.consumer("c")
    fill, read = driver.stream(), driver.stream()
    go = client.create_timeline("go")
    slot = producer.acquire(20, stream=fill)
    client.open_timeline("go").wait(1, stream=fill)
    slot.publish()
    item = consumer.next(20, stream=read)
    array = item.view()
    on_host = {"dl_device": (1, 0), "max_version": (1, 0)}
    uses = [array.tobytes, lambda: array.__dlpack__(**on_host), lambda: pickle.dumps(array)]
    if device == "host":
        uses += [lambda: np.from_dlpack(array), lambda: np.from_dlpack(item)]
        uses += [lambda: np.asarray(array), lambda: memoryview(array)]
    for use in uses:
        with pytest.raises(BufferError, match="taken for a stream, and is not complete"):
            use()
    go.signal(1)
    driver.synchronize(read)
    assert len(array.tobytes()) == MIB
    if device == "host":
        assert np.from_dlpack(item).shape == np.asarray(array).shape == (MIB,)
    item.release()
    with pytest.raises(gpushm.InvalidArgumentError):
        array.tobytes()


@pytest.mark.parametrize("device", ["0", "host"])
def test_the_cpu_writes_a_slot_of_a_stream_when_nothing_reads_it(client, driver, device):
    producer = client.producer("c", MIB, 1, device=device)
    consumer = client.consumer("c")
    fill, read, other = driver.stream(), driver.stream(), driver.stream()
    go = client.create_timeline("go")
    producer.acquire(20).publish()
    item = consumer.next(20, stream=read)
    client.open_timeline("go").wait(1, stream=read)
    item.release()
    slot = producer.acquire(20, stream=fill)
    array = slot.view()
    source = np.full(MIB, 7, "uint8")
    uses = [lambda: array.copy_from(source), array.tobytes]
    if device == "host":
        uses += [lambda: np.from_dlpack(array), lambda: np.from_dlpack(slot)]
        uses += [lambda: np.asarray(slot), lambda: memoryview(array)]
    for use in uses:
        with pytest.raises(BufferError, match="acquired for a stream, and is still read"):
            use()
    # Another stream than the slot's waits, too.
    if device == "0":
        array.__dlpack__(max_version=(1, 0), stream=other)
        assert driver.is_busy(other)
    go.signal(1)
    driver.synchronize(fill)
    driver.synchronize(other)
    array.copy_from(source)
    assert array.tobytes() == source.tobytes()
    slot.publish()
    with pytest.raises(gpushm.InvalidArgumentError):
        array.copy_from(source)


def test_asyncio_waits_for_streams(client, driver):
    async def main():
        producer = client.producer("c", MIB, 1, device="0")
        consumer = client.consumer("c")
        fill = driver.stream()
        go, done = client.create_timeline("go"), client.create_timeline("done")
        seen = client.open_timeline("done")
        slot = await producer.acquire_async(20, stream=fill)
        late = asyncio.create_task(producer.acquire_async(20, stream=fill))
        client.open_timeline("go").wait(1, stream=fill)
        done.signal(1, stream=fill)
        slot.publish()
        waits = [asyncio.create_task(each) for each in (seen.wait_async(1), consumer.next_async())]
        await asyncio.sleep(0.01)
        assert not any(each.done() for each in waits)
        go.signal(1)
        _, item = await asyncio.gather(*waits)
        item.release()
        (await late).abandon()
        driver.synchronize(fill)

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_batch_is_enqueued_whole_or_not_at_all(client, driver):
    with (
        client.create_timeline("a") as first,
        client.create_timeline("b") as second,
        client.create_timeline("f") as flags,
    ):
        flags.set_flags(0b1)
        seen = client.open_timeline("b")
        stream = driver.stream()
        batch = gpushm.StreamBatch()
        batch.enqueue(stream)  # nothing
        assert batch.wait(first, 1).signal(second, 5).set_flags(flags, 0b10) is batch
        assert len(batch) == 3
        batch.enqueue(stream)
        assert driver.is_busy(stream)
        assert seen.value == 0
        first.signal(1)
        seen.wait(5, 20)
        flags.wait_flags(0b10, 20)
        driver.synchronize(stream)
        # After an error nothing is enqueued.
        second_again = gpushm.StreamBatch().wait_flags(flags, 0b100).signal(second, 5)
        with pytest.raises(gpushm.InvalidArgumentError):
            second_again.enqueue(stream)
        assert not driver.is_busy(stream)
        batch.clear()
        for _ in range(65):
            batch.signal(second, 6)
        with pytest.raises(gpushm.InvalidArgumentError):
            batch.enqueue(stream)
        with pytest.raises(TypeError):
            batch.enqueue("stream")
    with pytest.raises(gpushm.InvalidArgumentError, match="closed"):
        batch.signal(second, 7)


def test_a_graph_waits_for_and_signals_new_values_at_each_launch(client, driver):
    requests, answers = client.create_timeline("requests"), client.create_timeline("answers")
    asked, answered = client.open_timeline("requests"), client.open_timeline("answers")
    stream = driver.stream()
    batch = gpushm.StreamBatch().wait(asked, 1).signal(answers, 1)
    with pytest.raises(gpushm.InvalidArgumentError):
        batch.record(stream)  # is not captured
    asked.prepare(stream)
    answers.prepare(stream)
    with Graph(driver, stream) as graph:
        operations = batch.record(stream)
    batch.clear()
    for n, executable in ((1, graph), (2, graph.raw_cuda_graph_exec()), (7, graph)):
        operations.set_values(executable, stream, [n, n])
        graph.launch()
        assert answered.value < n
        requests.signal(n)
        answered.wait(n, 20)
    driver.synchronize(stream)
    asked.check()
    for values in ([8], [8, 9, 10], [8, 7]):
        with pytest.raises(gpushm.InvalidArgumentError):
            operations.set_values(graph, stream, values)
    with pytest.raises(TypeError, match="cudaGraphExec_t"):
        operations.set_values("graph", stream, [8, 8])
    # The operations keep the timelines.
    del requests, asked, answers
    operations.set_values(graph, stream, [7, 8])
    graph.launch()
    answered.wait(8, 20)


def test_a_graph_waits_for_and_sets_the_same_flags_at_each_launch(client, driver):
    full, empty = 1, 2
    writer, reader = client.create_timeline("writer"), client.create_timeline("reader")
    stream = driver.stream()
    for each in (writer, reader):
        each.set_flags(empty)
        each.prepare(stream)
    with Graph(driver, stream) as graph:
        gpushm.StreamBatch().wait_flags(reader, empty).set_flags(writer, full).enqueue(stream)
        gpushm.StreamBatch().wait_flags(reader, full).set_flags(writer, empty).enqueue(stream)
    for _ in range(3):
        graph.launch()
        writer.wait_flags(full, 20)
        reader.set_flags(full)
        writer.wait_flags(empty, 20)
        reader.set_flags(empty)
    driver.synchronize(stream)
