# SPDX-License-Identifier: Apache-2.0
"""Windows: addresses at which a process sees one segment after the other."""

from __future__ import annotations

import gc
import os
import pickle
import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import gpushm

from support import wait_until

SIZE = 8192


@pytest.fixture
def opener(broker):
    """Another connection, which caches nothing, that opens segments of `client`."""
    with gpushm.connect(broker.socket, cache_bytes=0) as result:
        yield result


@pytest.fixture
def versions(client):
    """Two segments of one layout, which the test may close."""
    made = []
    for name, text in (("a", b"old"), ("b", b"new")):
        segment = client.create(name, SIZE, device="host")
        segment.write(text)
        segment.publish()
        made.append(segment)
    yield made
    for segment in made:
        segment.close()


def test_arrays_see_the_next_segment_at_the_same_address(opener, versions):
    with opener.open("a") as segment, segment.window() as window:
        array = np.from_dlpack(window.view())
        part = window.view("uint16", (2, 2), offset=2, strides=(8, 1))
        address = window.data_ptr
        assert array.ctypes.data == address == window.view().data_ptr
        assert address != segment.view().data_ptr
        assert (window.size, window.device, window.state) == (SIZE, "host", "live")
        assert repr(window) == "<gpushm.Window of 8192 bytes, host, live>"
        assert not array.flags.writeable
        for _ in range(3):
            assert array[:3].tobytes() == b"old"
            with opener.open("b") as following:
                window.show(following)
            assert array[:3].tobytes() == b"new"
            assert window.segment.name == "b"
            window.show(segment)
        assert window.data_ptr == address
        versions[0].write(b"\1\0\2\0", 2 + 16)
        assert np.from_dlpack(part)[1].tolist() == [1, 2]
        assert segment.read(0, 2) == b"ol"


def test_an_array_keeps_the_window_and_what_it_shows(client, opener, versions):
    with opener.open("a") as segment:
        window = segment.window()
    array = np.from_dlpack(window.view())
    with opener.open("b") as segment:
        window.show(segment)
    window.close()
    window.close()
    assert window.closed
    assert repr(window) == "<gpushm.Window, closed>"
    wait_until(lambda: client.stat("a").leases == 1, "the lease of the former segment ends")
    assert client.stat("b").leases == 2
    assert array[:3].tobytes() == b"new"
    del array
    gc.collect()
    wait_until(lambda: client.stat("b").leases == 1, "the lease ends with the array")


def test_the_segment_of_a_window_is_an_open_of_its_own(client, opener, versions):
    with opener.open("a") as segment:
        window = segment.window()
    shown = window.segment
    assert (shown.name, shown.generation) == ("a", versions[0].generation)
    window.close()
    assert shown.read(0, 3) == b"old"
    assert client.stat("a").leases == 2
    shown.close()
    wait_until(lambda: client.stat("a").leases == 1, "the lease ends")


def test_writes_reach_the_segment_that_is_shown(versions):
    first, second = versions
    with first.window() as window:
        array = np.from_dlpack(window.view())
        array[0] = ord("O")
        window.show(second)
        array[0] = ord("N")
        window.view().copy_from(b"N" * SIZE)
    assert first.read(0, 3) == b"Old"
    assert second.read() == b"N" * SIZE


def test_arrays_of_a_window_cannot_be_pickled(versions):
    with versions[0].window() as window:
        for array in (window.view(), window.view()[1:3]):
            with pytest.raises(TypeError, match="the array is of a window"):
                pickle.dumps(array)
        pickle.dumps(versions[0].view())
        with pytest.raises(TypeError):
            pickle.dumps(window)


def test_wrong_arguments_change_nothing(client, opener, versions):
    smaller = client.create("smaller", 4096, device="host")
    with opener.open("a") as segment, segment.window() as window:
        for call, kind, text in (
            (
                lambda: window.show(smaller),
                gpushm.InvalidArgumentError,
                'show "smaller": it is mapped for read-write, and the window for read '
                "(open it with the window's access)",
            ),
            (lambda: window.show(None), TypeError, "show"),
            (lambda: window.show(window), TypeError, "show"),
            (lambda: window.view(shape=(SIZE + 1,)), gpushm.SizeMismatchError, "are not within"),
            (lambda: window.view("float32", offset=2), ValueError, "is not aligned"),
        ):
            with pytest.raises(kind, match=re.escape(text)):
                call()
            assert window.view().tobytes()[:3] == b"old"
        with versions[0].window() as other:
            with pytest.raises(gpushm.SizeMismatchError, match="it has 4096 bytes"):
                other.show(smaller)
            assert other.segment.name == "a"
    for use in (
        lambda: window.show(segment),
        window.view,
        lambda: window.segment,
        lambda: window.data_ptr,
        lambda: window.size,
        lambda: window.state,
        lambda: window.device,
        segment.window,
    ):
        with pytest.raises(gpushm.InvalidArgumentError, match="this object was closed"):
            use()


def test_a_segment_that_is_shown_is_not_freed(client, versions):
    first, second = versions
    with first.window() as window:
        with pytest.raises(gpushm.SegmentBusyError):
            first.suspend("discard")
        first.suspend("keep")
        with pytest.raises(gpushm.InvalidArgumentError, match="resume it first"):
            first.window()
        assert window.view().tobytes()[:3] == b"old"
        window.show(second)
        with pytest.raises(gpushm.InvalidArgumentError, match="resume it first"):
            window.show(first)
        assert window.segment.name == "b"
        first.resume()
        first.suspend("discard")
        first.resume()


def test_threads_change_a_window_and_read_what_it_shows(versions):
    with versions[0].window() as window, ThreadPoolExecutor(4) as pool:

        def change(begin):
            for i in range(50):
                window.show(versions[(i + begin) % 2])

        def read(_):
            return {window.segment.name for _ in range(50)}

        changes = [pool.submit(change, begin) for begin in range(2)]
        for names in pool.map(read, range(2)):
            assert names <= {"a", "b"}
        for each in changes:
            each.result()
        text = {"a": b"old", "b": b"new"}[window.segment.name]
        assert window.view().tobytes()[:3] == text


def test_changes_leave_nothing(client, opener, versions):
    with opener.open("a") as first, opener.open("b") as second, first.window() as window:
        window.show(second)
        window.show(first)
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(200):
            window.show(second)
            window.show(first)
        wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before, "descriptors are closed")
        assert client.stat("a").leases == client.stat("b").leases == 2


def test_a_window_continues_after_its_broker_and_its_client(broker, versions):
    with gpushm.connect(broker.socket) as other:
        window = other.open("a").window()
    array = np.from_dlpack(window.view())
    assert array[:3].tobytes() == b"old"
    broker.kill()
    wait_until(lambda: window.state == "broker-gone", "the state changes")
    assert array[:3].tobytes() == b"old"
    broker.start()
    with gpushm.connect(broker.socket) as other:
        third = other.create("c", SIZE, device="host")
        third.write(b"third")
        third.publish()
        with other.open("c") as segment:
            window.show(segment)
    assert array[:5].tobytes() == b"third"
    assert window.state == "live"


def test_a_forked_child_cannot_change_a_window(versions, start):
    child = start("""
        import gpushm, os, sys, warnings
        warnings.simplefilter('ignore', DeprecationWarning)  # of a fork with threads, since 3.12
        client = gpushm.connect(sys.argv[1])
        first, second = client.open("a"), client.open("b")
        window = first.window()
        def refused(call):
            try:
                call()
            except gpushm.ForkedError:
                return True
        if (pid := os.fork()) == 0:
            calls = [lambda: window.show(second), lambda: window.segment, first.window]
            fine = all(map(refused, calls)) and window.state == "unknown"
            window.close()
            os._exit(0 if fine else 1)
        assert os.waitpid(pid, 0)[1] == 0
        window.show(second)
        print(window.view().tobytes()[:3])
        """)
    assert child.succeed() == "b'new'\n"
