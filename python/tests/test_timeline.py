# SPDX-License-Identifier: Apache-2.0
"""Timelines on CPUs, and arrays that are ready with a value."""

from __future__ import annotations

import contextlib
import threading
import time

import numpy as np
import pytest

import gpushm

import dlpack
from support import wait_until


def test_a_wait_ends_with_the_signaled_value(client):
    with client.create_timeline("t") as own:
        assert (own.name, own.own, own.value) == ("t", True, 0)
        with client.open_timeline("t") as opened:
            assert not opened.try_wait(1)
            own.signal(3)
            opened.wait(2, 0)
            assert opened.value == 3
            with pytest.raises(gpushm.InvalidArgumentError):
                own.signal(3)
            with pytest.raises(OverflowError):
                own.signal(2**62)
            with pytest.raises(TimeoutError) as raised:
                opened.wait(4, 0.01)
            assert str(raised.value) == (
                'wait "t": 4 was not reached in time (wait longer, or see whether the process that '
                "signals it makes progress)"
            )
            opened.check()
    with pytest.raises(gpushm.NoSuchSegmentError):
        client.open_timeline("t")


def test_a_wait_releases_the_gil(client):
    own = client.create_timeline("t")
    opened = client.open_timeline("t")
    threading.Timer(0.05, own.signal, [1]).start()
    opened.wait(1, 20)
    done = []
    waiter = threading.Thread(target=lambda: done.append(opened.wait(2, 20)))
    waiter.start()
    own.signal(2)
    waiter.join(20)
    assert done == [None]


def test_a_wait_for_flags_ends_when_one_of_them_is_set(client):
    own = client.create_timeline("t")
    opened = client.open_timeline("t")
    own.set_flags(0b10)
    opened.wait_flags(0b110, 5)
    with pytest.raises(gpushm.TimedOutError):
        opened.wait_flags(0b1, 0)


def test_a_killed_signaler_ends_the_waits_for_its_timeline(client, start):
    child = start("""
        import gpushm, sys
        timeline = gpushm.connect(sys.argv[1]).create_timeline('t')
        timeline.signal(5)
        print('ready', flush=True)
        sys.stdin.readline()
        """)
    assert child.line() == "ready"
    timeline = client.open_timeline("t")
    child.kill()
    with pytest.raises(gpushm.PeerDiedError):
        timeline.wait(6, 20)
    timeline.wait(5, 0)
    assert timeline.value == 5
    taken = timeline.take_over(20)
    taken.signal(6)
    assert (taken.own, taken.value) == (True, 6)


def test_a_timeline_is_signaled_by_the_process_that_took_it_over(client, broker):
    with gpushm.connect(broker.socket) as other:
        own = client.create_timeline("t")
        own.signal(1)
        opened = other.open_timeline("t")
        taken = []
        thread = threading.Thread(target=lambda: taken.append(opened.take_over(20)))
        thread.start()
        array = client.create("s", 8, device="host").view(ready=(own, 1))
        with pytest.raises(gpushm.InvalidArgumentError, match="arrays, or calls of other threads"):
            own.hand_over()
        del array
        own.hand_over()
        with pytest.raises(gpushm.InvalidArgumentError, match="was closed"):
            own.signal(2)
        thread.join(20)
        taken[0].signal(2)
        opened.wait(2, 5)


def test_a_segment_has_timelines_of_its_own(client):
    segment = client.create("s", 64, device="host")
    with pytest.raises(ValueError, match="1 to 64"):
        segment.create_timelines(0)
    first, second = segment.create_timelines(2)
    segment.publish()
    reader = client.open("s")
    opened = reader.open_timeline(1, timeout=5)
    second.signal(4)
    opened.wait(4, 5)
    assert first.value == 0
    with pytest.raises(gpushm.InvalidArgumentError):
        reader.open_timeline(2, timeout=0)


def test_an_array_that_is_not_ready_cannot_be_read_by_the_cpu(client):
    segment = client.create("s", 64, device="host")
    own = client.create_timeline("t")
    segment.ready = (own, 2)
    array = segment.view("int32", 4)
    assert array.ready[1] == 2
    assert array.ready[0].name == "t"
    started = time.monotonic()
    cause = 'the array of "s" is not ready: its timeline has not reached 2'
    for use in (
        lambda: np.from_dlpack(array),
        lambda: array.__dlpack__(max_version=(1, 0)),
        lambda: memoryview(array),
        lambda: memoryview(segment),
        lambda: array.tobytes(),
        lambda: array.__dlpack__(copy=True),
        lambda: dlpack.exchange_table(gpushm.Array).from_object(
            array, dlpack.ctypes.byref(dlpack.ctypes.POINTER(dlpack.ManagedVersioned)())
        ),
    ):
        with pytest.raises(BufferError, match=cause):
            use()
    assert time.monotonic() - started < 5
    # The consumer orders its work itself.
    array.__dlpack__(max_version=(1, 0), stream=-1)
    own.signal(2)
    assert np.from_dlpack(array).shape == (4,)
    with pytest.raises(TypeError, match="ready is a pair"):
        segment.view(ready=2)
    segment.ready = None
    assert segment.view().ready is None


def test_an_array_whose_signaler_died_is_refused(client, start):
    child = start("""
        import gpushm, sys
        client = gpushm.connect(sys.argv[1])
        segment = client.create('s', 64, device='host', lifetime='persistent')
        segment.create_timelines(1)
        timeline = client.create_timeline('t')
        segment.publish()
        print('ready', flush=True)
        sys.stdin.readline()
        """)
    assert child.line() == "ready"
    segment = client.open("s")
    timeline = client.open_timeline("t")
    array = segment.view(ready=(timeline, 1))
    child.kill()
    wait_until(lambda: _is_dead(timeline), "the timeline ends")
    with pytest.raises(gpushm.PeerDiedError):
        array.__dlpack__(max_version=(1, 0))
    with pytest.raises(BufferError):
        memoryview(array)


def _is_dead(timeline: gpushm.Timeline) -> bool:
    try:
        return timeline.try_wait(1)
    except gpushm.PeerDiedError:
        return True


def test_other_objects_than_streams_are_refused(client):
    timeline = client.create_timeline("t")
    with pytest.raises(TypeError, match="is not a CUDA stream"):
        timeline.signal(1, stream="stream")
    with pytest.raises(TypeError, match="is not a CUDA stream"):
        timeline.wait(1, stream=object())
    # It is a stream: without a driver, what remains is the library's error.
    with contextlib.suppress(gpushm.DriverUnavailableError, gpushm.DriverError):
        timeline.signal(1, stream=0)
    # A second number is not taken for a stream.
    with pytest.raises(TypeError):
        timeline.signal(1, 10)
