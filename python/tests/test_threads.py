# SPDX-License-Identifier: Apache-2.0
"""Objects that several threads use: each call has its own timeout, and close() ends those that wait."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

import gpushm

from support import TIME_LIMIT


class Call:
    """A call in another thread, which is most likely in its wait when this was made."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._result: list[Any] = []

        def run() -> None:
            try:
                self._result.append(function())
            except Exception as error:
                self._result.append(error)

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()
        self._thread.join(0.1)

    def result(self) -> Any:
        self._thread.join(TIME_LIMIT)
        assert self._result, "the call does not end"
        return self._result[0]


def test_a_second_reader_of_events_has_its_own_timeout(client):
    subscription = client.subscribe("s")
    first = Call(lambda: subscription.next(None))
    stop = gpushm.Stop()
    third = Call(lambda: subscription.next(None, stop=stop))
    assert subscription.next(0) is None
    assert subscription.next(0.01) is None
    assert Call(lambda: subscription.next(0.01)).result() is None
    assert subscription.dispatch() == []
    stop.request()
    assert isinstance(third.result(), gpushm.CancelledError)
    client.create("s", 8, device="host", lifetime="persistent").publish()
    assert first.result().name == "s"
    subscription.close()


def test_a_second_reader_of_events_ends_with_ctrl_c(start):
    child = start("""
        import gpushm, sys, threading
        subscription = gpushm.connect(sys.argv[1]).subscribe('s')
        def wait():
            try:
                subscription.next(None)
            except (gpushm.CancelledError, gpushm.InvalidArgumentError):
                pass
        thread = threading.Thread(target=wait)
        thread.start()
        try:
            print('waiting', flush=True)
            subscription.next(None)
        except KeyboardInterrupt:
            print('interrupted', flush=True)
        subscription.close()
        thread.join()
        """)
    assert child.line() == "waiting"
    child.process.send_signal(signal.SIGINT)
    assert child.succeed() == "interrupted\n"


WAITS: dict[str, Callable[[gpushm.Client], tuple[Any, Callable[[Any], Any]]]] = {
    "events": lambda client: (client.subscribe("s"), lambda self: self.next(None)),
    "timeline": lambda client: (client.create_timeline("t"), lambda self: self.wait(1, None)),
    "value": lambda client: (client.create_timeline("t"), lambda self: self.try_wait(1, None)),
    "open": lambda client: (client, lambda self: self.open("never", timeout=None)),
    "timeline by name": lambda client: (
        client,
        lambda self: self.open_timeline("never", timeout=None),
    ),
}


@pytest.mark.parametrize("wait_name", WAITS)
def test_close_ends_the_waits_of_other_threads(broker, wait_name):
    made, wait = WAITS[wait_name](gpushm.connect(broker.socket))
    calls = [Call(lambda: wait(made)) for _ in range(3)]
    made.close()
    made.close()
    for each in calls:
        # The latter: one that had not begun.
        assert isinstance(each.result(), (gpushm.CancelledError, gpushm.InvalidArgumentError))


def test_calls_one_after_another_share_a_thread(start):
    child = start("""
        import gpushm, pathlib, sys, time
        def name_of(task):
            try:
                return (task / 'comm').read_text()
            except OSError:
                return ''  # it has ended
        def threads():
            tasks = pathlib.Path('/proc/self/task').iterdir()
            return {each.name for each in tasks if name_of(each) == 'gpushm-call\\n'}
        client = gpushm.connect(sys.argv[1])
        kept = client.create('t', 4096, device='host')
        kept.publish()
        shared = 0
        for _ in range(50):  # a thread ends if this process stops for a second between two calls
            client.open('t', timeout=10).close()
            first = threads()
            client.open('t', timeout=10).close()
            shared += len(first) == 1 and threads() == first
        print(shared > 0)
        while threads():  # it ends by itself
            time.sleep(0.05)
        """)
    assert child.succeed() == "True\n"


def test_a_forked_child_has_threads_of_its_own_for_its_calls(start):
    child = start("""
        import gpushm, os, sys, warnings
        warnings.simplefilter('ignore', DeprecationWarning)  # of a fork with threads, since 3.12
        client = gpushm.connect(sys.argv[1])
        kept = client.create('t', 4096, device='host')
        kept.publish()
        client.open('t', timeout=10).close()  # leaves a thread that waits for the next call
        pid = os.fork()
        if pid == 0:
            with gpushm.connect(sys.argv[1]) as other:
                print(other.open('t', timeout=10).size, flush=True)
            os._exit(0)
        print(os.waitpid(pid, 0)[1], flush=True)
        """)
    assert child.succeed() == "4096\n0\n"
