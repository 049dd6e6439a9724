# SPDX-License-Identifier: Apache-2.0
"""A broker for one run of a program of this folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator


@contextlib.contextmanager
def broker() -> Iterator[None]:
    """GPUSHM_SOCKET is that of a broker of this program."""
    command = os.environ.get("GPUSHM_COMMAND") or shutil.which("gpushm") or sys.exit("no gpushm")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["GPUSHM_SOCKET"] = f"{folder}/socket"
        read_end, write_end = os.pipe()
        process = subprocess.Popen(
            [command, "serve", "--socket", f"{folder}/socket", "--ready-fd", str(write_end)],
            pass_fds=[write_end], stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(write_end)
        if os.read(read_end, 1) != b"\n":
            sys.exit("the broker did not start")
        try:
            yield
        finally:
            process.terminate()
            process.wait(20)
