# SPDX-License-Identifier: Apache-2.0
"""The examples of pages, with the output that they show."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

import gpushm._shared


@pytest.mark.parametrize(
    ("name", "least"), [("README.md", 4), ("docs/python.md", 25), ("docs/python-migration.md", 20)]
)
def test_examples_of_documents_print_what_the_documents_show(
    broker, monkeypatch, tmp_path, name, least
):
    page = Path(__file__).parents[2] / name
    if not page.exists():
        pytest.skip("the source tree is not on this machine")
    monkeypatch.setenv("GPUSHM_SOCKET", broker.socket)
    monkeypatch.setattr(gpushm._shared, "_connection", None)  # of another test's broker
    monkeypatch.chdir(tmp_path)
    result = doctest.testfile(str(page), module_relative=False, verbose=False)
    assert result.attempted >= least
    assert result.failed == 0
