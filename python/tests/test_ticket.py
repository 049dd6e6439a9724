# SPDX-License-Identifier: Apache-2.0
"""Tickets of segments and timelines, and the log."""

from __future__ import annotations

import logging
import os
import struct

import pytest

import gpushm
import gpushm._core
import gpushm._log

from support import wait_until

READER = """
    import gpushm, sys
    segment = gpushm.import_ticket(bytes.fromhex(sys.argv[2]))
    timeline = gpushm.import_timeline(bytes.fromhex(sys.argv[3]))
    print(segment.name, segment.access, segment.read(0, 5), timeline.own, flush=True)
    timeline.wait(7, 20)
    print(timeline.value, flush=True)
    """


def test_segments_and_timelines_are_imported_by_their_tickets(client, start):
    segment = client.create("s", 4096, device="host")
    segment.write(b"hello")
    segment.publish()
    timelines = {
        "of a broker": client.create_timeline("t"),
        "local": gpushm.create_local_timeline(),
    }
    for timeline in timelines.values():
        child = start(READER, segment.ticket().hex(), timeline.ticket().hex())
        assert child.line() == "s read b'hello' False"
        timeline.signal(7)
        assert child.succeed() == "7\n"
    again = gpushm.import_ticket(segment.ticket(), access="read-write")
    again.write(b"J")
    assert segment.read(0, 5) == b"Jello"
    inside = segment.create_timelines(1)[0]
    with pytest.raises(gpushm.InvalidArgumentError):
        inside.ticket()


def test_a_ticket_names_the_socket_in_a_given_directory(client, broker):
    segment = client.create("s", 4096, device="host")
    segment.publish()
    ticket = segment.ticket("socket")
    where = os.path.dirname(broker.socket)
    with gpushm.import_ticket(ticket, directory=where) as opened:
        assert opened.size == 4096
    with pytest.raises(gpushm.Error):
        gpushm.import_ticket(ticket, directory="/nowhere")
    timeline = client.create_timeline("t")
    assert gpushm.import_timeline(timeline.ticket("socket"), directory=where).name == "t"


def test_an_import_waits_for_the_file_of_a_ticket(client, tmp_path, start):
    segment = client.create("s", 4096, device="host")
    segment.publish()
    path = tmp_path / "ticket"
    with pytest.raises(gpushm.NoSuchSegmentError):
        gpushm.import_file(path)
    child = start(
        """
        import gpushm, sys
        print(gpushm.import_file(sys.argv[2], timeout=20).size, flush=True)
        """,
        str(path),
    )
    with gpushm.write_ticket_file(path, segment.ticket(), mode=0o640) as file:
        assert path.stat().st_mode & 0o777 == 0o640
        assert child.succeed() == "4096\n"
        with pytest.raises(gpushm.AddressInUseError):
            gpushm.write_ticket_file(path, segment.ticket())
        file.close()
        assert not path.exists()


@pytest.mark.parametrize("ticket", [b"", b"x", b"\0" * 100, b"\xff" * 4096, b"gpushm" * 700])
def test_bytes_that_are_not_a_ticket_are_refused(ticket):
    with pytest.raises((gpushm.InvalidTicketError, gpushm.UnsupportedVersionError)):
        gpushm.import_ticket(ticket)
    with pytest.raises((gpushm.InvalidTicketError, gpushm.UnsupportedVersionError)):
        gpushm.import_timeline(ticket)


def test_wrong_arguments_are_refused(client):
    segment = client.create("s", 4096, device="host")
    segment.publish()
    with pytest.raises(ValueError, match="access is"):
        gpushm.import_ticket(segment.ticket(), access="write")
    with pytest.raises(TypeError):
        gpushm.import_ticket("text")
    with pytest.raises(gpushm.Error):  # host memory, and no driver
        gpushm.export_memory(segment.view())


def test_log_lines_go_to_the_chosen_logger(caplog, client, tmp_path):
    path = tmp_path / "m.safetensors"
    path.write_bytes(struct.pack("<Q", 2) + b"{}")

    def load() -> None:
        """Logs how long it has taken."""
        client.load_tensors(path, "m", device="host").close()
        client.remove("m")

    def names() -> list[str]:
        return [record.name for record in caplog.records]

    with caplog.at_level(logging.DEBUG):
        load()  # without a call of log_to
        wait_until(lambda: names() == ["gpushm"], "the first line")
        gpushm.log_to(logging.getLogger("gpushm.test"))
        load()
        gpushm._log._stop()  # passes on what was written before
        load()
    assert names() == ["gpushm", "gpushm.test"]
    for record in caplog.records:
        assert record.levelno == logging.DEBUG
        assert record.message.startswith('load "m": microseconds')


def test_a_logger_that_fails_does_not_stop_calls(start, tmp_path):
    path = tmp_path / "m.safetensors"
    path.write_bytes(struct.pack("<Q", 2) + b"{}")
    child = start(
        """
        import gpushm, sys, threading
        lines = threading.Semaphore(0)
        class Logger:
            def log(self, *arguments):
                lines.release()
                1 / 0
        client = gpushm.connect(sys.argv[1])
        gpushm.log_to(Logger())
        for name in ('m', 'n'):
            client.load_tensors(sys.argv[2], name, device='host').close()
            assert lines.acquire(timeout=50)
        print('loaded', flush=True)
        """,
        str(path),
    )
    status, out, err = child.end()
    assert (status, out) == (0, "loaded\n")
    assert err.count("ZeroDivisionError") == 2


def test_lines_that_are_not_taken_are_counted(start, tmp_path):
    path = tmp_path / "m.safetensors"
    path.write_bytes(struct.pack("<Q", 2) + b"{}")
    child = start(
        """
        import gpushm, logging, sys, threading
        entered, leave, lines = threading.Event(), threading.Event(), []
        class Logger:
            def log(self, level, form, text):
                entered.set()
                assert leave.wait(50)
                lines.append((level, text))
        gpushm.log_to(Logger())
        client = gpushm.connect(sys.argv[1])
        def load():
            client.load_tensors(sys.argv[2], 'm', device='host').close()
            client.remove('m')
        load()
        assert entered.wait(50)  # this line was taken
        for _ in range(262):
            load()
        leave.set()
        gpushm._log._stop()
        print(len(lines), lines[-1])
        """,
        str(path),
    )
    last = (logging.WARNING, "6 lines of the log were dropped")
    assert child.succeed() == f"258 {last}\n"


def test_the_interpreter_may_end_while_lines_are_logged(start):
    child = start("""
        import gpushm, logging, sys
        logging.basicConfig(level=logging.DEBUG, stream=sys.stdout)
        gpushm.log_to()
        client = gpushm.connect(sys.argv[1])
        client.create('s', 64, device='host').publish()
        """)
    status, _, err = child.end()
    assert (status, err) == (0, "")
