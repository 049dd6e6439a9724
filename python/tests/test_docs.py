# SPDX-License-Identifier: Apache-2.0
"""The examples of docs/python.md, with the output that it shows."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest


def test_examples(broker, monkeypatch, tmp_path):
    page = Path(__file__).parents[2] / "docs" / "python.md"
    if not page.exists():
        pytest.skip("the source tree is not on this machine")
    monkeypatch.setenv("GPUSHM_SOCKET", broker.socket)
    monkeypatch.chdir(tmp_path)
    result = doctest.testfile(str(page), module_relative=False, verbose=False)
    assert result.attempted >= 25
    assert result.failed == 0
