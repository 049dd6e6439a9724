# SPDX-License-Identifier: Apache-2.0
"""Brokers in this process: Broker, FileExport."""

from __future__ import annotations

import gc
import os
import tempfile
import threading

import numpy as np
import pytest

import gpushm

from support import Held, wait_until

READER = """
    import gpushm, sys
    segment = gpushm.connect(sys.argv[1]).open('s', timeout=50)
    print(segment.read(0, 5), flush=True)
    """


@pytest.fixture
def folder():
    # Not pytest's: the path of a socket has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="gpushm-test-") as path:
        yield path


def test_a_broker_in_this_process_serves_other_processes(folder, spawn):
    with gpushm.Broker(f"{folder}/first") as broker, gpushm.connect(broker.socket) as client:
        client.create("s", 4096, device="host").close()  # a process keeps some for its next one
    gc.collect()
    before = Held()
    with gpushm.Broker(f"{folder}/socket", domain="here", mode=0o600) as broker:
        assert (broker.socket, len(broker.epoch)) == (f"{folder}/socket", 16)
        assert os.stat(broker.socket).st_mode & 0o777 == 0o600
        client = gpushm.connect(broker.socket)
        assert (client.broker().domain, client.broker().epoch) == ("here", broker.epoch)
        segment = client.create("s", 4096, device="host", lifetime="persistent")
        segment.write(b"hello")
        segment.publish()
        child = spawn(READER, broker.socket)
        assert child.succeed() == "b'hello'\n"
        wait_until(lambda: broker.statistics().connections == 1, "the child's connection ends")
        now = broker.statistics()
        assert (now.segments, now.leases, now.opens) == (1, 1, 1)
        with pytest.raises(gpushm.NoSuchSegmentError):
            client.open("other")
        assert broker.statistics().open_failures == {"no_such_segment": 1}
        assert sum(broker.statistics().open_latency) >= 1
        assert not broker.closed
    assert broker.closed
    assert segment.state == "broker-gone"
    assert segment.read(0, 5) == b"hello"
    for use in (broker.statistics, lambda: broker.socket, lambda: broker.epoch):
        with pytest.raises(gpushm.InvalidArgumentError, match="this object was closed"):
            use()
    broker.close()
    with pytest.raises(gpushm.BrokerUnreachableError):
        gpushm.connect(f"{folder}/socket")
    segment.close()
    client.close()
    del segment, client
    wait_until(lambda: Held() == before, "nothing is left")


def test_a_broker_enforces_its_limits(folder):
    with gpushm.Broker(f"{folder}/socket", quota_bytes=8192, max_segments=16) as broker:
        with gpushm.connect(broker.socket) as client:
            assert (client.broker().quota_bytes, client.broker().max_segments) == (8192, 16)
            with pytest.raises(gpushm.QuotaExceededError):
                client.create("s", 16384, device="host")
        with pytest.raises(gpushm.AddressInUseError):
            gpushm.Broker(broker.socket)
    with pytest.raises(TypeError, match="a broker has no limit max_sgments"):
        gpushm.Broker(f"{folder}/socket", max_sgments=16)
    for wrong in (-1, 1 << 32, "16"):
        with pytest.raises(ValueError, match="max_segments is a number of 32 bits"):
            gpushm.Broker(f"{folder}/socket", max_segments=wrong)
    with pytest.raises(gpushm.Error):
        gpushm.Broker(f"{folder}/none/socket")


def test_a_forked_child_is_not_the_broker(folder, spawn):
    child = spawn(
        """
        import gpushm, os, sys, warnings
        warnings.simplefilter('ignore', DeprecationWarning)  # of a fork with threads, since 3.12
        broker = gpushm.Broker(sys.argv[1] + '/socket')
        export = gpushm.FileExport(sys.argv[1] + '/file')
        segment = export.client.create('s', 64, device='host')
        segment.publish()
        export.write(segment)
        pid = os.fork()
        if pid == 0:
            for use in (broker.statistics, lambda: broker.socket, lambda: export.write(segment)):
                try:
                    use()
                except gpushm.ForkedError as error:
                    print(error.code.name, flush=True)
            broker.close()
            export.close()
            del broker, export
            sys.exit(0)
        status = os.waitpid(pid, 0)[1]
        gpushm.connect(broker.socket).create('t', 64, device='host')
        print(status, gpushm.import_file(sys.argv[1] + '/file').name, flush=True)
        """,
        folder,
    )
    assert child.succeed() == "FORKED\nFORKED\nFORKED\n0 s\n"


def test_a_broker_may_be_dropped_while_a_line_is_logged(folder, spawn):
    """Its end waits for threads of the library, none of which needs the GIL."""
    child = spawn(
        """
        import gpushm, logging, sys, threading
        entered, leave = threading.Event(), threading.Event()
        class Handler(logging.Handler):
            def emit(self, record):
                entered.set()
                assert leave.wait(50)
        logging.getLogger('gpushm').addHandler(Handler())
        logging.getLogger('gpushm').setLevel(logging.DEBUG)
        gpushm.log_to()
        broker = gpushm.Broker(sys.argv[1] + '/socket')
        export = gpushm.FileExport(sys.argv[1] + '/file')
        segments = [
            gpushm.connect(broker.socket).create('s', 64, device='host'),
            export.client.create('s', 64, device='host'),
        ]
        for segment in segments:
            segment.publish()
        del segment
        del broker
        assert entered.wait(50)
        del export
        del segments
        leave.set()
        print('ended', flush=True)
        """,
        folder,
    )
    assert child.succeed() == "ended\n"


def test_brokers_may_live_until_the_interpreter_ends(folder, spawn):
    child = spawn(
        """
        import gpushm, sys
        broker = gpushm.Broker(sys.argv[1] + '/socket')
        export = gpushm.FileExport(sys.argv[1] + '/file')
        segment = export.client.create('s', 64, device='host')
        cycle = [broker, export, segment]; cycle.append(cycle)
        sys.modules['keep'] = cycle
        """,
        folder,
    )
    assert child.succeed() == ""


def test_a_file_export_serves_processes_that_wait_for_the_file(folder, spawn):
    path = f"{folder}/weights"
    code = """
        import gpushm, sys
        segment = gpushm.import_file(sys.argv[1], timeout=50)
        print(segment.name, segment.read(0, 3), flush=True)
        """
    child = spawn(code, path)  # waits for the file
    with gpushm.FileExport(path) as export:
        assert export.path == path
        first = export.client.create("first", 4096, device="host")
        np.from_dlpack(first)[:3] = (1, 2, 3)
        assert not os.path.exists(path)
        first.publish()
        export.write(first)
        assert child.succeed() == "first b'\\x01\\x02\\x03'\n"
        with pytest.raises(gpushm.AddressInUseError):
            gpushm.FileExport(path)
        # Threads have their turns; the file is always a whole one.
        second = export.client.create("second", 4096, device="host")
        second.publish()
        threads = [
            threading.Thread(
                target=lambda segment=segment: [export.write(segment) for _ in range(20)]
            )
            for segment in (first, second)
        ]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            assert gpushm.import_file(path).name in ("first", "second")
        export.write(second)
        imported = gpushm.import_file(path)
        assert imported.name == "second"
        with pytest.raises(TypeError):
            export.write(b"second")
    assert export.closed
    assert export.client.closed
    assert not os.path.exists(path)
    assert imported.read(0, 1) == b"\0"
    export.close()
    with pytest.raises(gpushm.InvalidArgumentError, match="this object was closed"):
        export.write(second)
    with gpushm.FileExport(path):
        pass
