# SPDX-License-Identifier: Apache-2.0
"""Fixtures of all tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import gpushm

from support import Broker, Child


@pytest.fixture
def broker() -> Iterator[Broker]:
    result = Broker()
    yield result
    result.stop()


@pytest.fixture
def client(broker: Broker) -> Iterator[gpushm.Client]:
    with gpushm.connect(broker.socket, cache_bytes=0) as result:
        yield result


@pytest.fixture
def spawn() -> Iterator[Callable[..., Child]]:
    """Starts a child process, which ends with the test."""
    children: list[Child] = []

    def run(code: str, *arguments: str, prefix: tuple[str, ...] = ()) -> Child:
        children.append(Child(code, *arguments, prefix=prefix))
        return children[-1]

    yield run
    for child in children:
        if child.process.poll() is None:
            child.kill()
        for stream in (child.process.stdin, child.process.stdout, child.process.stderr):
            if stream is not None:
                stream.close()


@pytest.fixture
def start(broker: Broker, spawn: Callable[..., Child]) -> Callable[..., Child]:
    """Starts a child process with the broker's socket as its first argument."""

    def run(code: str, *arguments: str, prefix: tuple[str, ...] = ()) -> Child:
        return spawn(code, broker.socket, *arguments, prefix=prefix)

    return run
