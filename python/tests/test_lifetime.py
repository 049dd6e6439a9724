# SPDX-License-Identifier: Apache-2.0
"""What keeps memory and leases, and how they end: on any thread, in any state of the interpreter."""

from __future__ import annotations

import gc
import os
import threading
import weakref

import numpy as np
import pytest

import gpushm

import dlpack
from support import Held, wait_until


@pytest.fixture
def opener(broker):
    """Another connection that opens segments of `client`."""
    with gpushm.connect(broker.socket, cache_bytes=0) as result:
        yield result


@pytest.fixture
def published(client):
    with client.create("s", 4096, device="host", lifetime="persistent") as segment:
        segment.fill(5)
        segment.publish()
        yield segment


def leases(client: gpushm.Client) -> int:
    return client.stat("s").leases


def makers():
    return {
        "array": lambda segment: segment.view("int32", 8),
        "view of an array": lambda segment: segment.view("int32", 8).view("float32"),
        "numpy by dlpack": lambda segment: np.from_dlpack(segment.view("int32", 8)),
        "numpy by buffer": lambda segment: np.asarray(segment.view("int32", 8)),
        "slice of numpy": lambda segment: np.from_dlpack(segment.view("int32", 8))[3:5],
        "numpy of the segment": np.from_dlpack,
        "memoryview": memoryview,
        "capsule": lambda segment: segment.view().__dlpack__(max_version=(1, 0)),
        "old capsule": lambda segment: segment.view().__dlpack__(),
        "imported": lambda segment: gpushm.from_dlpack(segment.view()),
        "imported twice": lambda segment: gpushm.from_dlpack(np.from_dlpack(segment.view())),
    }


@pytest.mark.parametrize("maker", makers())
def test_the_lease_lives_as_long_as_what_was_made_from_it(client, opener, published, maker):
    gc.collect()
    before = Held()
    segment = opener.open("s", access="read-write")
    made = makers()[maker](segment)
    segment.close()
    del segment
    assert leases(client) == 2
    if isinstance(made, (np.ndarray, memoryview)):
        assert bytes(made)[0] == 5
    del made
    gc.collect()
    wait_until(lambda: leases(client) == 1, "the lease ends")
    wait_until(lambda: Held() == before, "mappings and descriptors are gone")


def test_a_thousand_arrays_are_one_lease(client, opener, published):
    arrays = [np.from_dlpack(opener.open("s").view("int32", 8, offset=32 * i)) for i in range(100)]
    assert leases(client) == 2
    while arrays:
        arrays.pop()
    wait_until(lambda: leases(client) == 1, "the lease ends")


def test_a_consumer_releases_without_the_gil_on_any_thread(client, opener, published):
    addresses = [
        dlpack.take(opener.open("s").view().__dlpack__(max_version=(1, 0))) for _ in range(64)
    ]
    assert leases(client) == 2
    # ctypes releases the GIL for the call: a deleter that used Python would crash.
    threads = [
        threading.Thread(target=lambda part=part: [dlpack.delete(each) for each in part])
        for part in (addresses[::4], addresses[1::4], addresses[2::4], addresses[3::4])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    wait_until(lambda: leases(client) == 1, "the lease ends")


def test_a_consumer_releases_after_the_interpreter_has_ended(start, published, client):
    child = start(
        """
        import ctypes, sys
        sys.path.insert(0, sys.argv[2])
        import dlpack, gpushm
        array = gpushm.connect(sys.argv[1]).open('s').view()
        address = dlpack.take(array.__dlpack__(max_version=(1, 0)))
        libc = ctypes.CDLL(None)
        register = libc.__cxa_atexit
        register.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
        line = ctypes.create_string_buffer(b'released')
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(line))  # lives longer than the interpreter
        # In reverse order: first the deleter, then the line.
        register(ctypes.cast(libc.puts, ctypes.c_void_p), ctypes.addressof(line), None)
        deleter = ctypes.cast(dlpack.ManagedVersioned.from_address(address).deleter, ctypes.c_void_p)
        register(deleter, address, None)
        print('leases', gpushm.connect(sys.argv[1]).stat('s').leases, flush=True)
        """,
        os.path.dirname(__file__),
    )
    assert child.succeed() == "leases 2\nreleased\n"
    wait_until(lambda: leases(client) == 1, "the lease ends")


def test_objects_may_live_until_the_interpreter_ends(start, published):
    child = start("""
        import gpushm, numpy, sys
        client = gpushm.connect(sys.argv[1])
        segment = client.open('s')
        arrays = [numpy.from_dlpack(segment.view()), memoryview(segment), segment.view()]
        timeline = client.create_timeline('t')
        producer = client.producer('c', 8, 2, device='host')
        cycle = [segment]; cycle.append(cycle)
        sys.modules['keep'] = cycle
        """)
    assert child.succeed() == ""


def test_a_forked_child_releases_nothing_of_its_parent(start, published, client):
    child = start(
        """
        import os, sys, warnings
        warnings.simplefilter('ignore', DeprecationWarning)  # of a fork with threads, since 3.12
        sys.path.insert(0, sys.argv[2])
        import dlpack, gpushm, numpy
        client = gpushm.connect(sys.argv[1])
        segment = client.open('s')
        array = numpy.from_dlpack(segment.view())
        view = memoryview(segment)
        address = dlpack.take(segment.view().__dlpack__(max_version=(1, 0)))
        pid = os.fork()
        if pid == 0:
            assert array[0] == 5  # host memory stays readable
            try:
                client.stat('s')
            except gpushm.ForkedError as error:
                print(error.code.name, flush=True)
            dlpack.delete(address)
            view.release()
            del array, view
            segment.close()
            client.close()
            sys.exit(0)
        status = os.waitpid(pid, 0)[1]
        print(status, client.stat('s').leases, array[0], flush=True)
        dlpack.delete(address)
        """,
        os.path.dirname(__file__),
    )
    assert child.succeed() == "FORKED\n0 2 5\n"


def test_arrays_stay_readable_after_the_death_of_the_broker(broker, client, published):
    gc.collect()
    before = Held()
    array = np.from_dlpack(client.open("s").view())
    address = dlpack.take(client.open("s").view().__dlpack__(max_version=(1, 0)))
    view = memoryview(client.open("s"))
    broker.kill()
    assert published.state == "broker-gone"
    assert (array == 5).all()
    assert view[4095] == 5
    dlpack.delete(address)
    view.release()
    del array
    gc.collect()
    wait_until(lambda: Held().mappings == before.mappings, "mappings are gone")


def test_the_last_array_of_a_client_may_end_while_a_line_is_logged(start, broker):
    child = start("""
        import gpushm, logging, sys, threading
        entered, leave = threading.Event(), threading.Event()
        class Handler(logging.Handler):
            def emit(self, record):
                entered.set()
                leave.wait()
        logging.getLogger('gpushm').addHandler(Handler())
        logging.getLogger('gpushm').setLevel(logging.DEBUG)
        gpushm.log_to()
        client = gpushm.connect(sys.argv[1], cache_bytes=0, cache_entries=0)
        segment = client.create('s', 64, device='host')
        segment.publish()
        array = segment.view()
        segment.close()
        client.close()
        del segment, client
        print('ready', flush=True)
        assert entered.wait(50)
        del array  # joins the client's thread, whose line is in the handler
        leave.set()
        print('released', flush=True)
        """)
    assert child.line() == "ready"
    broker.kill()
    assert child.succeed() == "released\n"


def test_a_child_forked_while_a_line_is_logged_has_its_own_log(start, broker):
    """The child has a log of its own, whatever its parent's thread does."""
    child = start("""
        import gpushm, logging, os, sys, threading, warnings
        warnings.simplefilter('ignore', DeprecationWarning)  # of a fork with threads, since 3.12
        class Gate:
            def __init__(self):
                self.entered, self.leave = threading.Event(), threading.Event()
        gate = Gate()
        class Handler(logging.Handler):
            def emit(self, record):
                gate.entered.set()
                assert gate.leave.wait(50)
        logging.getLogger('gpushm').addHandler(Handler())
        logging.getLogger('gpushm').setLevel(logging.DEBUG)
        gpushm.log_to()
        def use():
            segment = gpushm.connect(sys.argv[1]).create(f's{os.getpid()}', 64, device='host')
            segment.publish()
            os.write(1, b'ready\\n')
            assert gate.entered.wait(50)
            return segment
        segment = use()
        os.write(1, b'entered\\n')
        sys.stdin.readline()
        pid = os.fork()
        if pid == 0:
            gate = Gate()
            gate.leave.set()
            use()
            sys.exit(0)  # joins the thread of the log
        status = os.waitpid(pid, 0)[1]
        gate.leave.set()
        print(status, flush=True)
        """)
    assert child.line() == "ready"
    broker.kill()
    assert child.line() == "entered"
    broker.start()
    child.say("go")
    assert child.line() == "ready"
    broker.kill()
    assert child.succeed() == "0\n"


def test_a_killed_reader_holds_nothing(client, published, start):
    child = start("""
        import gpushm, numpy, sys
        array = numpy.from_dlpack(gpushm.connect(sys.argv[1]).open('s').view())
        print(array[0], flush=True)
        sys.stdin.readline()
        """)
    assert child.line() == "5"
    assert leases(client) == 2
    child.kill()
    wait_until(lambda: leases(client) == 1, "the lease ends")


def test_a_killed_creator_leaves_persistent_memory(client, start):
    child = start("""
        import gpushm, numpy, sys
        segment = gpushm.connect(sys.argv[1]).create('w', 4096, device='host', lifetime='persistent')
        numpy.from_dlpack(segment.view())[:] = 9
        segment.publish(b'nine')
        print('published', flush=True)
        sys.stdin.readline()
        """)
    assert child.line() == "published"
    reader = client.open("w")
    child.kill()
    assert bytes(memoryview(reader)) == b"\x09" * 4096
    again = client.open("w")
    assert (again.metadata, again.read(0, 1)) == (b"nine", b"\x09")


def test_a_shared_tensor_lives_until_it_is_closed(client, tmp_path):
    import fcntl
    import mmap

    descriptor = os.memfd_create("shared", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, 4096)
    fcntl.fcntl(descriptor, 1033, 7)
    tensor = np.frombuffer(mmap.mmap(descriptor, 4096), "uint8")
    os.close(descriptor)

    class Owner(np.ndarray):
        pass

    owner = tensor.view(Owner)
    alive = weakref.ref(owner)
    segment = client.share("x", owner)
    del owner
    gc.collect()
    assert alive() is not None
    segment.close()
    gc.collect()
    wait_until(lambda: alive() is None, "the tensor is released")


def test_repeated_rounds_leave_no_descriptor_mapping_or_lease(client, published):
    def round_of_everything() -> None:
        with client.open("s") as segment:
            array = segment.view("int32", (4, 4))
            np.from_dlpack(array)
            gpushm.from_dlpack(np.asarray(array))
            array.__dlpack__(max_version=(1, 0), copy=True)
            with pytest.raises(gpushm.NoSuchSegmentError):
                client.open("missing")
            with pytest.raises(gpushm.SizeMismatchError):
                segment.view("int8", 5000)

    for _ in range(20):
        round_of_everything()
    gc.collect()
    before = Held()
    for _ in range(300):
        round_of_everything()
    gc.collect()
    assert Held() == before
