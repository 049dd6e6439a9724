# SPDX-License-Identifier: Apache-2.0
"""Fixtures of tests of GPUs: the fake driver's (test_fake_gpus.py), or real ones."""

from __future__ import annotations

import pytest

from gpus import FAKE, MIB, Driver
from support import Broker


@pytest.fixture(scope="module")
def driver():
    try:
        result = Driver()
    except (OSError, AssertionError) as error:
        pytest.skip(f"no CUDA driver with a GPU: {error}")
    if result.count == 0:
        pytest.skip("no GPU")
    return result


@pytest.fixture
def broker(driver):
    result = Broker(*(["--accept-fake-chunks"] if FAKE else []))
    yield result
    result.stop()


@pytest.fixture
def segment(client):
    with client.create("s", 4 * MIB, device="0") as result:
        result.fill(0)
        yield result
