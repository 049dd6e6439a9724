# SPDX-License-Identifier: Apache-2.0
"""Segments that a process unmaps for a time, and maps again at their address."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import gpushm

from support import wait_until


@pytest.fixture
def written(client):
    with client.create("s", 8192, device="host") as segment:
        segment.write(b"before")
        segment.publish(b"facts")
        yield segment


@pytest.fixture
def opener(broker):
    """Another connection that opens segments of `client`."""
    with gpushm.connect(broker.socket) as result:
        yield result


def test_a_suspended_segment_is_resumed_at_its_address(written, opener):
    with opener.open("s") as segment:
        array = np.from_dlpack(segment.view())
        address = array.ctypes.data
        segment.suspend()
        segment.suspend("keep")
        assert segment.state == "suspended"
        assert repr(segment) == '<gpushm.Segment "s", 8192 bytes, read, suspended>'
        assert written.state == "live"
        written.write(b"after!")
        segment.resume()
        assert segment.state == "live"
        assert array[:6].tobytes() == b"after!"
        assert np.from_dlpack(segment.view()).ctypes.data == address


def test_nothing_of_a_suspended_segment_is_read(client, written):
    with client.open("s") as segment:
        segment.suspend()
        for name, use in {
            "read": segment.read,
            "view": segment.view,
            "write": lambda: segment.write(b"x"),
            "fill": lambda: segment.fill(1),
            "again": lambda: client.open("s").view(),  # the same mapping
        }.items():
            with pytest.raises(gpushm.InvalidArgumentError, match="resume it first"):
                use()
            assert segment.state == "suspended", name
        with pytest.raises(gpushm.InvalidArgumentError, match="resume it first"):
            np.from_dlpack(segment)
        with pytest.raises(BufferError):
            memoryview(segment)
        segment.resume()
        assert segment.read(0, 6) == b"before"


def test_wrong_orders_and_arguments_change_nothing(written, opener):
    with opener.open("s") as segment:
        with pytest.raises(
            gpushm.InvalidArgumentError,
            match=re.escape(
                'resume "s": the memory is not suspended (call resume once after suspend)'
            ),
        ):
            segment.resume()
        with pytest.raises(ValueError, match="contents is"):
            segment.suspend("all")
        with pytest.raises(TypeError):
            segment.suspend(None)
        assert segment.state == "live"
        assert segment.read(0, 6) == b"before"
    with pytest.raises(gpushm.InvalidArgumentError):
        segment.suspend()
    with pytest.raises(gpushm.InvalidArgumentError):
        segment.resume()


def test_contents_in_host_memory_come_back_and_waiting_opens_get_them(client, written, opener):
    address, generation = written.view().data_ptr, written.generation
    written.suspend("host")
    assert written.state == "suspended"
    with pytest.raises(gpushm.NoSuchSegmentError):
        opener.open("s")
    with ThreadPoolExecutor(1) as pool:
        opened = pool.submit(opener.open, "s", timeout=30)
        written.resume()
        segment = opened.result()
    assert written.view().data_ptr == address
    assert written.generation == segment.generation > generation
    assert (segment.read(0, 6), segment.metadata) == (b"before", b"facts")
    with pytest.raises(gpushm.SegmentBusyError, match="1 other connections have a lease"):
        written.suspend("host")
    assert written.state == "live"
    segment.close()
    wait_until(lambda: client.stat("s").leases == 1, "the lease ends")
    written.suspend("host")
    written.close()
    assert client.list() == []


def test_a_discarded_segment_is_published_again(client, written, opener):
    generation = written.generation
    written.suspend("discard")
    with pytest.raises(gpushm.InvalidArgumentError, match="suspended with discard"):
        written.suspend("keep")
    written.resume()
    assert written.generation > generation
    assert written.metadata == b""
    with pytest.raises(gpushm.NoSuchSegmentError):
        opener.open("s")
    written.fill(7)
    written.publish(b"new")
    segment = opener.open("s")
    assert (segment.read(0, 2), segment.metadata, written.metadata) == (b"\7\7", b"new", b"new")


def test_nothing_is_left_of_a_process_that_dies_with_its_contents_in_host_memory(client, start):
    child = start("""
        import gpushm, sys
        segment = gpushm.connect(sys.argv[1]).create("t", 4096, device="host", lifetime="persistent")
        segment.publish()
        segment.suspend("host")
        print(segment.state, flush=True)
        sys.stdin.read()
        """)
    assert child.line() == "suspended"
    child.kill()
    assert client.list() == []
    client.create("t", 4096, device="host")


def test_the_lease_of_a_process_that_dies_suspended_ends(client, written, start):
    child = start("""
        import gpushm, sys
        segment = gpushm.connect(sys.argv[1]).open("s")
        segment.suspend()
        print(segment.state, flush=True)
        sys.stdin.read()
        """)
    assert child.line() == "suspended"
    assert client.stat("s").leases == 2
    child.kill()
    wait_until(lambda: client.stat("s").leases == 1, "the lease ends")
    assert written.read(0, 6) == b"before"


def test_a_forked_child_can_neither_suspend_nor_resume(written, start):
    child = start("""
        import gpushm, os, sys, warnings
        warnings.simplefilter('ignore', DeprecationWarning)  # of a fork with threads, since 3.12
        segment = gpushm.connect(sys.argv[1]).open("s")
        def refused(call):
            try:
                call()
            except gpushm.ForkedError:
                return True
        if (pid := os.fork()) == 0:
            os._exit(0 if refused(segment.suspend) and refused(segment.resume) else 1)
        assert os.waitpid(pid, 0)[1] == 0
        segment.suspend()
        if (pid := os.fork()) == 0:
            os._exit(0 if refused(segment.suspend) and refused(segment.resume) else 1)
        assert os.waitpid(pid, 0)[1] == 0
        segment.resume()
        print(segment.read(0, 6))
        """)
    assert child.succeed() == "b'before'\n"
