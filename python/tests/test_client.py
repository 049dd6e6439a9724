# SPDX-License-Identifier: Apache-2.0
"""Clients and segments: names, errors, waits, signals."""

from __future__ import annotations

import builtins
import os
import pickle
import signal
import threading
import time

import pytest

import gpushm


def test_a_missing_broker_is_reported_with_the_next_step(tmp_path):
    with pytest.raises(gpushm.BrokerUnreachableError) as raised:
        gpushm.connect(tmp_path / "socket")
    error = raised.value
    assert isinstance(error, ConnectionError)
    assert error.code is gpushm.ErrorCode.BROKER_UNREACHABLE
    assert error.operation == "connect"
    assert error.object == str(tmp_path / "socket")
    assert error.cause == "the socket does not exist"
    assert error.next_step == (
        "start a broker with `gpushm serve`, or mount the domain's directory"
    )
    assert str(error) == f'connect "{tmp_path}/socket": {error.cause} ({error.next_step})'


def test_a_segment_can_be_opened_once_it_is_published(client):
    with client.create("w/one", 1000, device="host") as segment:
        assert (segment.name, segment.size, len(segment)) == ("w/one", 1000, 1000)
        assert (segment.device, segment.ordinal, segment.backend) == ("host", -1, "host")
        assert (segment.access, segment.lifetime, segment.state) == ("read-write", "leased", "live")
        assert segment.metadata == b""
        assert len(segment.epoch) == 16
        with pytest.raises(FileNotFoundError):
            client.open("w/one")
        segment.write(b"hello", 10)
        segment.publish(b"\x00meta")
        with client.open("w/one") as opened:
            assert opened.generation == segment.generation
            assert opened.access == "read"
            assert opened.metadata == b"\x00meta"
            assert opened.read(9, 7) == b"\x00hello\x00"
            assert client.stat("w/one").leases == 1
        assert repr(segment) == '<gpushm.Segment "w/one", 1000 bytes, read-write, live>'
    assert segment.closed
    assert repr(segment) == "<gpushm.Segment, closed>"
    assert client.list() == []


def test_calls_of_a_closed_object_are_refused(client):
    segment = client.create("s", 8, device="host")
    segment.close()
    segment.close()
    with pytest.raises(gpushm.InvalidArgumentError) as raised:
        segment.publish()
    assert str(raised.value) == (
        "publish: this object was closed (use it before close(), or before the end of its `with` "
        "statement)"
    )
    with pytest.raises(gpushm.InvalidArgumentError):
        segment.view()


def test_errors_have_the_builtin_classes(client):
    segment = client.create("s", 8, device="host")
    with pytest.raises(FileExistsError):
        client.create("s", 8, device="host")
    segment.publish()
    with pytest.raises(gpushm.AlreadyPublishedError):
        segment.publish()
    with pytest.raises(gpushm.SizeMismatchError):
        client.open("s", size=9)
    with pytest.raises(ValueError, match="name"):
        client.create("", 8, device="host")
    with pytest.raises(gpushm.InvalidArgumentError):
        client.create("zero", 0, device="host")
    with pytest.raises(ValueError, match="access is"):
        client.open("s", access="write")
    with pytest.raises(ValueError, match="lifetime is"):
        client.create("t", 8, lifetime="ever")
    with pytest.raises(gpushm.InvalidArgumentError):
        segment.read(4, 5)
    with pytest.raises(gpushm.InvalidArgumentError):
        segment.write(b"12345", 4)
    with pytest.raises(gpushm.InvalidArgumentError):
        client.open("s").write(b"1")
    with pytest.raises(gpushm.MessageTooLargeError):
        client.create("big", 8, device="host").publish(bytes(65537))


def test_each_code_has_a_class():
    for code in gpushm.ErrorCode:
        kind = gpushm._errors.CLASSES[code]
        assert getattr(gpushm, kind.__name__) is kind
        assert kind.__name__ in gpushm.__all__
        assert gpushm._core.error_name(code) == code.name.lower()
        error = gpushm._errors.from_parts(int(code), "open", "x", "why", "do", "open x: why (do)")
        copied = pickle.loads(pickle.dumps(error))
        assert type(copied) is kind
        assert (copied.code, copied.cause, str(copied)) == (code, "why", "open x: why (do)")
    # The library has no code that this package lacks.
    known = {int(code) for code in gpushm.ErrorCode}
    assert {n for n in range(1, 64) if gpushm._core.error_name(n) != "unknown"} == known
    new = gpushm._errors.from_parts(63, "", "", "", "", "new").code
    assert (new, new.name, type(new)) == (63, "UNKNOWN_63", gpushm.ErrorCode)
    with pytest.raises(ValueError, match="not a valid"):
        gpushm.ErrorCode("text")


def test_open_many_returns_segments_in_the_given_order(client):
    for name in ("a", "b"):
        client.create(name, 16, device="host", lifetime="persistent").publish()
    opened = client.open_many(["b", "a"])
    assert [segment.name for segment in opened] == ["b", "a"]
    with pytest.raises(gpushm.NoSuchSegmentError):
        client.open_many(["a", "missing"])
    found, missing = client.open_many(["a", "missing"], return_errors=True)
    assert found.name == "a"
    assert isinstance(missing, gpushm.NoSuchSegmentError)
    assert missing.object == "missing"
    assert client.open_many([]) == []


def test_list_and_stat_show_segments_until_they_are_removed(client):
    segment = client.create("p/x", 100, device="host", lifetime="persistent")
    segment.publish(b"12")
    client.create("q", 1, device="host", lifetime="persistent").publish()
    info = client.stat("p/x")
    assert [each.name for each in client.list()] == ["p/x", "q"]
    assert client.list("p/") == [info]
    assert (info.size, info.metadata_size, info.lifetime) == (100, 2, "persistent")
    assert (info.published, info.creator_alive, info.device) == (True, True, "host")
    client.remove("p/x")
    with pytest.raises(gpushm.NoSuchSegmentError):
        client.stat("p/x")
    assert segment.state == "removed"
    segment.fill(7)
    assert segment.read() == b"\x07" * 100


def test_a_forgotten_publish_is_reported(client, broker):
    segment = client.create("un", 64, device="host")
    said = f"being created by pid {os.getpid()}, which has not published it yet"
    with gpushm.connect(broker.socket) as other:
        for call in (other.open, other.stat):
            with pytest.raises(gpushm.NoSuchSegmentError, match=said):
                call("un")
    segment.publish()
    client.open("un").close()


def test_create_that_replaces_moves_the_name_when_it_is_published(client):
    old = client.create("r/x", 64, device="host", lifetime="persistent")
    old.publish()
    with pytest.raises(gpushm.AlreadyExistsError):
        client.create("r/x", 64, device="host")
    with pytest.raises(gpushm.GoneOrReplacedError):
        client.create("r/x", 64, device="host", replaces=old.generation + 100)
    new = client.create("r/x", 128, device="host", replaces=old.generation)
    assert client.stat("r/x").generation == old.generation
    assert [each.generation for each in client.list("r/")] == [old.generation]
    new.publish()
    assert client.open("r/x").generation == new.generation
    assert old.state == "removed"
    client.remove("r/x")


def test_a_generation_that_was_replaced_is_not_removed(client):
    first = client.create("g/x", 64, device="host")
    old = first.generation
    client.remove("g/x", generation=old)
    with pytest.raises(gpushm.NoSuchSegmentError):
        client.remove("g/x", generation=old)
    new = client.create("g/x", 64, device="host")
    for call in (client.stat, client.remove):
        with pytest.raises(gpushm.GoneOrReplacedError):
            call("g/x", generation=old)
        with pytest.raises(gpushm.InvalidArgumentError):
            call("g/x", generation=0)
    assert client.stat("g/x", generation=new.generation).generation == new.generation


def test_the_client_names_its_broker(client, broker):
    info = client.broker()
    assert (info.socket, info.domain, info.pid) == (broker.socket, "default", broker.process.pid)
    assert len(info.epoch) == 16


def test_an_open_waits_without_the_gil(client):
    ticks = 0
    opened = []
    thread = threading.Thread(target=lambda: opened.append(client.open("late", timeout=20)))
    thread.start()
    segment = client.create("late", 8, device="host")
    while thread.is_alive() and ticks < 100:
        ticks += 1
        if ticks == 50:
            segment.publish()
        time.sleep(0.001)
    thread.join(20)
    assert opened[0].generation == segment.generation
    assert ticks >= 50


def test_no_name_hides_a_builtin():
    assert gpushm.SystemCallError.__name__ == "SystemCallError"
    assert not {name for name in gpushm.__all__ if hasattr(builtins, name)}


@pytest.mark.parametrize("timeout", [0, 0.01])
def test_an_open_ends_after_its_timeout(client, timeout):
    start = time.monotonic()
    with pytest.raises(gpushm.NoSuchSegmentError):
        client.open("never", timeout=timeout)
    assert time.monotonic() - start < 5


def test_a_timeout_is_a_number(client):
    with pytest.raises(ValueError, match="timeout is not a number"):
        client.open("x", timeout=float("nan"))


TIMED = {
    "connect": "gpushm.connect(broker.socket, timeout=-1)",
    "request_limit": "gpushm.connect(broker.socket, request_limit=-1)",
    "open": "client.open('x', timeout=-1)",
    "open_many": "client.open_many(['x'], timeout=-1)",
    "open_timeline": "client.open_timeline('x', timeout=-1)",
    "segment_timeline": "segment.open_timeline(0, timeout=-1)",
    "wait": "timeline.wait(2, timeout=-1)",
    "try_wait": "timeline.try_wait(2, timeout=-1)",
    "wait_flags": "timeline.wait_flags(2, timeout=-1)",
    "take_over": "timeline.take_over(timeout=-1)",
    "events": "events.next(timeout=-1)",
    "consumer": "client.consumer('x', timeout=-1)",
    "resume": "client.consumer('x', resume=-1)",
    "acquire": "producer.acquire(timeout=-1)",
    "next": "consumer.next(timeout=-1)",
    "import_file": "gpushm.import_file('/nowhere', timeout=-1)",
    "open_tensors": "client.open_tensors('x', timeout=-1)",
    "load_tensors": "client.load_tensors('/nowhere', 'x', timeout=-1)",
    "batch": "gpushm.StreamBatch().enqueue(0, timeout=-1)",
}


def test_a_negative_timeout_is_refused_by_each_call(broker, client):
    with (
        client.create("t/segment", 64, device="host") as segment,
        client.create_timeline("t/timeline") as timeline,
        client.subscribe("t/") as events,
        client.producer("t/channel", 64, 1, device="host") as producer,
        client.consumer("t/channel") as consumer,
    ):
        names = {**globals(), **locals()}
        for call in TIMED.values():
            with pytest.raises(ValueError, match="is negative; give seconds"):
                eval(call, names)


def test_0_does_not_wait(client, tmp_path):
    model = tmp_path / "model.safetensors"
    header = b'{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}'
    model.write_bytes(len(header).to_bytes(8, "little") + header + b"data")
    with pytest.raises(gpushm.TimedOutError):
        client.load_tensors(model, "t/model", device="host", timeout=0)
    client.load_tensors(model, "t/model", device="host").close()
    client.load_tensors(model, "t/model", device="host", timeout=0).close()
    client.remove("t/model")
    with pytest.raises(gpushm.NoSuchSegmentError):
        client.consumer("t/nowhere", timeout=0)


def test_errors_have_the_process_and_the_number_they_are_about(broker, client):
    with client.create_timeline("t/value") as timeline:
        with pytest.raises(gpushm.ValueOutOfRangeError) as raised:
            timeline.signal(1 << 62)
        assert (raised.value.pid, raised.value.value) == (None, 1 << 62)
        copied = pickle.loads(pickle.dumps(raised.value))
        assert (copied.pid, copied.value) == (None, 1 << 62)
    with gpushm.connect(broker.socket) as other, client.create("t/pid", 64, device="host"):
        with pytest.raises(gpushm.AlreadyExistsError) as taken:
            other.create("t/pid", 64, device="host")
        assert (taken.value.pid, taken.value.value) == (os.getpid(), None)


WAITS = {
    "connect": "gpushm.connect(sys.argv[1] + '.none', timeout=None, stop=stop)",
    "open": "client.open('never', timeout=60, stop=stop)",
    "open_many": "client.open_many(['never', 'too'], timeout=60, stop=stop)",
    "open_timeline": "client.open_timeline('never', timeout=None, stop=stop)",
    "segment_timeline": "segment.open_timeline(0, timeout=60, stop=stop)",
    "timeline": "timeline.wait(1, None, stop=stop)",
    "timeline_try": "timeline.try_wait(1, 60, stop=stop)",
    "flags": "other.wait_flags(1, stop=stop)",
    "take_over": "opened.take_over(60, stop=stop)",
    "consumer": "client.consumer('never', timeout=60, stop=stop)",
    "next": "reader.next(60, stop=stop)",
    "acquire": "producer.acquire(60, stop=stop)",
    "subscription": "events.next(60, stop=stop)",
}
PREPARE = """
import gpushm, sys, threading
client = gpushm.connect(sys.argv[1])
segment = client.create('s', 8, device='host')
timeline = client.create_timeline('t')
opened = client.open_timeline('t')
other = client.create_timeline('f')
events = client.subscribe('none')
producer = client.producer('c', 8, 2, device='host')
stop = gpushm.Stop() if len(sys.argv) > 2 else None
reader = client.consumer('c')
if 'producer.acquire' in WAIT:
    for i in range(2):
        producer.acquire().publish()
"""


@pytest.mark.parametrize("wait", WAITS)
def test_ctrl_c_ends_every_wait(start, wait):
    child = start(
        f"WAIT = {WAITS[wait]!r}\n"
        + PREPARE
        + f"""
print('ready', flush=True)
try:
    {WAITS[wait]}
except KeyboardInterrupt:
    print('interrupted', flush=True)
"""
    )
    assert child.line() == "ready"
    time.sleep(0.1)  # so that it waits, most likely
    began = time.monotonic()
    child.process.send_signal(signal.SIGINT)
    assert child.line() == "interrupted"
    assert time.monotonic() - began < 1
    child.succeed()


def test_a_signal_handler_runs_during_a_wait_that_goes_on(start):
    child = start("""
        import gpushm, signal, sys
        client = gpushm.connect(sys.argv[1])
        timeline = client.create_timeline('t')
        signal.signal(signal.SIGUSR1, lambda *_: timeline.signal(1))
        print('ready', flush=True)
        timeline.wait(1, 60)
        print('done', flush=True)
        """)
    assert child.line() == "ready"
    child.process.send_signal(signal.SIGUSR1)
    assert child.line() == "done"
    child.succeed()


@pytest.mark.parametrize("wait", WAITS)
@pytest.mark.parametrize("main", [True, False])
def test_a_stop_ends_every_wait(start, wait, main):
    call = "wait()" if main else "t = threading.Thread(target=wait); t.start(); t.join(30)"
    child = start(
        f"WAIT = {WAITS[wait]!r}\n"
        + PREPARE
        + f"""
def wait():
    try:
        {WAITS[wait]}
    except gpushm.CancelledError as error:
        print('cancelled', error.code.name, flush=True)
threading.Timer(0.1, stop.request).start()
{call}
""",
        "stop",
    )
    assert child.line() == "cancelled CANCELLED"
    child.succeed()


@pytest.mark.parametrize("wait", WAITS)
def test_a_broker_that_does_not_answer_does_not_hold_ctrl_c(start, broker, wait):
    child = start(
        f"WAIT = {WAITS[wait]!r}\n"
        + PREPARE
        + f"""
print('ready', flush=True)
sys.stdin.readline()
try:
    {WAITS[wait]}
except KeyboardInterrupt:
    print('interrupted', flush=True)
"""
    )
    assert child.line() == "ready"
    broker.process.send_signal(signal.SIGSTOP)
    try:
        child.say("go")
        time.sleep(0.2)
        began = time.monotonic()
        child.process.send_signal(signal.SIGINT)
        assert child.line() == "interrupted"
        assert time.monotonic() - began < 5  # a cancelled call may take a second
    finally:
        broker.process.send_signal(signal.SIGCONT)
    child.succeed()


def test_segments_outlive_their_client(client):
    segment = client.create("s", 8, device="host")
    client.close()
    assert segment.state == "live"


def test_a_subscription_reports_events_of_its_prefix(client):
    client.create("s/0", 8, device="host", lifetime="persistent").publish()
    with client.subscribe("s/") as events:
        assert [info.name for info in events.present] == ["s/0"]
        client.create("other", 8, device="host").publish()
        with client.create("s/1", 8, device="host") as segment:
            segment.publish()
            event = events.next(20)
            assert (event.kind, event.name) == ("published", "s/1")
            assert event.generation == segment.generation
            assert (event.loss, event.xid) == ("none", 0)
        client.remove("s/0")
        kinds = [events.next(20).kind for _ in range(2)]
        assert kinds == ["removed", "removed"]
        assert events.next(0) is None
        assert events.dispatch() == []


def test_a_dead_broker_ends_waits_and_leaves_memory(client, broker):
    segment = client.create("s", 8, device="host", lifetime="persistent")
    segment.publish()
    segment.fill(3)
    with client.subscribe() as events:
        broker.kill()
        with pytest.raises(gpushm.BrokerGoneError):
            events.next(20)
    assert segment.state == "broker-gone"
    assert segment.read() == b"\x03" * 8
    with pytest.raises(ConnectionError):
        client.stat("s")


def test_names_come_with_the_connection(broker, client):
    with client.create("a", 4096, device="host") as segment:
        segment.write(b"contents")
        segment.publish()
        with gpushm.connect(broker.socket, prefetch=["missing", "a"]) as other:
            assert client.stat("a").leases == 2
            with other.open("a") as opened:
                assert opened.read(size=8) == b"contents"
            with pytest.raises(gpushm.NoSuchSegmentError):
                other.open("missing")
    with pytest.raises(gpushm.InvalidArgumentError):
        gpushm.connect(broker.socket, prefetch=[""])
    with pytest.raises(TypeError):
        gpushm.connect(broker.socket, prefetch="a")
