# SPDX-License-Identifier: Apache-2.0
"""Live updates whose versions are on a GPU: the publisher's side, which needs no framework."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import gpushm

from gpus import MIB
from support import wait_until


def test_arrays_of_the_host_and_of_a_gpu_are_published(client, segment, driver):
    values = np.arange(MIB // 4, dtype="float32")
    segment.view("float32", MIB // 4).copy_from(values)
    publisher = gpushm.WeightPublisher("w/policy", device="0", client=client)
    stream = driver.stream()
    number = publisher.update(
        {
            "host": values,
            "gpu": segment.view("float32", MIB // 4),
            "scalar": np.array(3, "float32"),
        },
        stream=stream,
    )
    got = client.get("w/policy@latest")
    assert client.open(f"w/policy@{number}").device != "host"
    assert got["host"].tobytes() == got["gpu"].tobytes() == values.tobytes()
    assert got["scalar"].item() == 3


def test_copies_come_after_the_earlier_work_of_the_stream(client, segment, driver):
    """The stream waits for a timeline before it may be read: update() waits, too."""
    timeline = client.create_timeline("t")
    stream = driver.stream()
    timeline.wait(1, stream=stream)
    publisher = gpushm.WeightPublisher("w/policy", device="0", client=client)
    later = threading.Timer(0.1, timeline.signal, [1])
    later.start()
    publisher.update({"w": segment.view("float32", 8)}, stream=stream)
    assert timeline.value == 1
    later.join()


def test_memory_of_a_gpu_is_flat_over_updates(client, driver):
    publisher = gpushm.WeightPublisher("w/policy", device="0", client=client)
    values = np.ones(MIB, "uint8")
    for _ in range(30):
        number = publisher.update({"w": values})
    wait_until(
        lambda: [each.number for each in client.versions("w/policy")] == [number], "the last one"
    )
    assert sum(each.allocated_size for each in client.list("w/policy@")) <= 4 * MIB


def test_a_failing_copy_ends_the_version(client, driver):
    publisher = gpushm.WeightPublisher("w/policy", device="7", client=client)
    with pytest.raises(gpushm.Error):
        publisher.update({"w": np.ones(8, "uint8")})
    assert client.versions("w/policy") == []
