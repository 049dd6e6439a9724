# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of GPUs with the fake driver."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support import run_with_fake_gpus


def test_gpu_tests_with_the_fake_driver():
    if "GPUSHM_FAKE_GPU_ROOT" in os.environ:
        pytest.skip("this is the run with the fake driver")
    tests = Path(__file__).with_name("gpu")
    arguments = ["-q", "-p", "no:cacheprovider", str(tests)]
    result = subprocess.run(
        [
            run_with_fake_gpus(),
            "--gpus",
            "2",
            "--",
            sys.executable,
            "-m",
            "pytest",
            *arguments,
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    passed = re.search(r"^(\d+) passed in", result.stdout, re.MULTILINE)
    assert passed is not None, result.stdout  # none was skipped
    assert int(passed.group(1)) >= 41
