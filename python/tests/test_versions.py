# SPDX-License-Identifier: Apache-2.0
"""Versions of names: published as one, opened by number and alias, by several processes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import gpushm

from support import Child

PAGE = 4096


def publish(client: gpushm.Client, name: str, parts: tuple[str, ...] = (), keep: int = 1) -> int:
    """A version whose parts have its number as first byte."""
    number = client.create_version(name, parts, keep=keep)
    for part in parts or ("",):
        path = f"{name}@{number}" + (f"/{part}" if part else "")
        with client.create(path, PAGE, device="host", lifetime="persistent") as segment:
            memoryview(segment)[:1] = bytes([number])
            segment.publish()
    return number


def value(client: gpushm.Client, name: str) -> int:
    with client.open(name) as segment:
        return memoryview(segment)[0]


def test_versions_are_opened_by_number_and_alias(client: gpushm.Client) -> None:
    assert publish(client, "w/x") == 1
    assert publish(client, "w/x") == 2
    assert value(client, "w/x@1") == 1
    assert value(client, "w/x@latest") == 2
    assert client.resolve_version("w/x") == 2
    with pytest.raises(gpushm.NoSuchSegmentError, match="w/x@latest"):
        client.open("w/x")
    client.withdraw_version("w/x", 2)
    assert value(client, "w/x@latest") == 1
    assert client.resolve_version("w/x@latest") == 1


def test_aliases_move(client: gpushm.Client) -> None:
    publish(client, "w/x")
    publish(client, "w/x")
    client.move_alias("w/x", "prod", 1)
    assert value(client, "w/x@prod") == 1
    client.move_alias("w/x", "prod", 2)
    assert value(client, "w/x@prod") == 2
    first = client.versions("w/x")[0]
    assert first == gpushm.VersionInfo(2, "published", ("latest", "prod"), PAGE, 0, False)
    client.remove_alias("w/x", "prod")
    with pytest.raises(gpushm.NoSuchSegmentError):
        client.open("w/x@prod")
    with pytest.raises(gpushm.InvalidArgumentError):
        client.move_alias("w/x", "latest", 1)
    assert client.versions("w/none") == []


def test_a_version_of_a_process_that_dies_is_never_seen(
    client: gpushm.Client, start: Callable[..., Child]
) -> None:
    publish(client, "w/x", ("r0", "r1"))
    child = start(
        """
import sys, gpushm
client = gpushm.connect(sys.argv[1])
number = client.create_version("w/x", ["r0", "r1"])
client.create(f"w/x@{number}/r0", 4096, device="host", lifetime="persistent").publish()
print(number, flush=True)
sys.stdin.readline()
"""
    )
    assert child.line() == "2"
    assert value(client, "w/x@latest/r0") == 1
    with pytest.raises(gpushm.NoSuchSegmentError):
        client.open("w/x@2/r0")
    child.kill()
    # Its memory is free once the process cannot write any longer.
    with client.subscribe("w/x@") as events:
        while [each.number for each in client.versions("w/x")] != [1]:
            events.next(timeout=0.05)
    assert value(client, "w/x@latest/r1") == 1


def test_what_lies_under_a_version_goes_with_it(client: gpushm.Client) -> None:
    number = publish(client, "w/x")
    with client.create(
        f"w/x@{number}/kernels", PAGE, device="host", lifetime="persistent"
    ) as cache:
        cache.publish()
    assert value(client, "w/x@latest/kernels") == 0
    client.remove(f"w/x@{number}")
    with pytest.raises(gpushm.NoSuchSegmentError):
        client.open(f"w/x@{number}/kernels")
    with pytest.raises(gpushm.NoSuchSegmentError):
        client.open("w/x@latest")


def test_segments_of_a_version_are_arrays(client: gpushm.Client) -> None:
    numpy = pytest.importorskip("numpy")
    number = client.create_version("w/y", ["table"])
    client.put(f"w/y@{number}/table", numpy.arange(6, dtype="float32"))
    array = client.get("w/y@latest/table")
    assert numpy.asarray(array).tolist() == [0, 1, 2, 3, 4, 5]
