# SPDX-License-Identifier: Apache-2.0
"""What the library says about caches, channels, tickets and streams."""

from __future__ import annotations

import os

import pytest

import gpushm


def test_statistics_of_the_import_cache_count_hits_and_misses(broker):
    with gpushm.connect(broker.socket) as client:
        client.create("s", 4096, device="host", lifetime="persistent").publish()
        with gpushm.connect(broker.socket) as reader:
            before = reader.cache_stats()
            assert (before.hits, before.misses, before.used_entries) == (0, 0, 0)
            with reader.open("s"):
                assert reader.cache_stats().used_entries == 1
            with reader.open("s"):
                pass
            now = reader.cache_stats()
            assert (now.hits, now.misses, now.kept_entries) == (1, 1, 1)
            assert now.kept_bytes >= 4096
            reader.trim()
            assert reader.cache_stats().kept_entries == 0


def test_the_status_of_a_channel_names_producer_and_consumers(client, broker):
    with pytest.raises(gpushm.NoSuchSegmentError):
        client.channel_status("c")
    producer = client.producer("c", 4096, 4, device="host")
    consumer = client.consumer("c", mode="latest", held=2)
    producer.acquire(20).publish()
    item = consumer.next(20)
    with gpushm.connect(broker.socket) as other:
        status = other.channel_status("c")
    assert (status.slots, status.slot_size, status.published) == (4, 4096, 1)
    assert (status.has_producer, status.is_closed, status.producer_pid) == (
        True,
        False,
        os.getpid(),
    )
    (one,) = status.consumers
    assert (one.mode, one.may_hold, one.holds, one.is_admitted) == ("latest", 2, 1, True)
    assert (one.taken, one.pid, one.uid) == (1, os.getpid(), os.getuid())
    item.release()
    producer.close()
    assert client.channel_status("c").is_closed


def test_a_ticket_is_described_without_an_import(client, broker):
    segment = client.create("s", 5000, device="host")
    segment.publish()
    info = gpushm.describe_ticket(segment.ticket())
    assert (info.name, info.socket, info.size) == ("s", broker.socket, 5000)
    assert (info.generation, info.device, info.backend) == (segment.generation, "host", "host")
    assert (info.exporter_pid, info.has_handle) == (os.getpid(), False)
    with pytest.raises(gpushm.InvalidTicketError):
        gpushm.describe_ticket(b"")


def test_unfence_needs_a_lease_that_waits(client):
    with pytest.raises(gpushm.NoSuchSegmentError):
        client.unfence("s")
    segment = client.create("s", 4096, device="host")
    segment.publish()
    with pytest.raises(gpushm.InvalidArgumentError):
        client.unfence("s")


def test_the_number_of_waiting_streams_has_a_limit():
    counts = gpushm.waiting_streams()
    assert counts.waiting == 0
    assert 0 < counts.limit < counts.connections
