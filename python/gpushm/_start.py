# SPDX-License-Identifier: Apache-2.0
"""``connect(start=True)``: a broker for scripts and notebooks, which the first of them starts."""

from __future__ import annotations

import os
import subprocess
import time
from typing import TYPE_CHECKING, Any

from gpushm import _core
from gpushm._errors import BrokerUnreachableError, ErrorCode, SystemCallError
from gpushm._program import program

if TYPE_CHECKING:
    from gpushm._core import Client, Stop

__all__: list[str] = []

# The broker exits when it has had neither a client nor a segment for so long.
_IDLE = "60s"
# If the caller gives no timeout; a broker starts in some milliseconds.
_START_SECONDS = 20.0
# Between attempts, while another process starts a broker.
_PAUSE_SECONDS = 0.01


def connect(
    socket: str | os.PathLike[str] | None, timeout: float | None, stop: Stop | None, **options: Any
) -> Client:
    """As :func:`gpushm.connect`, but starts a broker if none answers."""
    deadline = time.monotonic() + (timeout or _START_SECONDS)
    while True:
        try:
            return _core.connect(socket, timeout=0.0, stop=stop, **options)
        except BrokerUnreachableError as error:
            if time.monotonic() >= deadline or (stop is not None and stop.requested):
                raise
            _start(socket, deadline, error)


def _start(
    socket: str | os.PathLike[str] | None, deadline: float, unreachable: BrokerUnreachableError
) -> None:
    """Starts one, and waits until it is ready. Returns also if another process was faster: the lock of
    the socket lets one broker start. Raises BrokerUnreachableError, SystemCallError,
    FileNotFoundError."""
    command = [program(), "serve", "--detach", "--idle-exit", _IDLE]
    if socket is not None:
        command += ["--socket", os.fsdecode(socket)]
    left = max(deadline - time.monotonic(), 0.1)
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=left, check=False
        )
    except subprocess.TimeoutExpired:
        raise unreachable from None
    if done.returncode == 0:
        return
    cause = done.stderr.decode(errors="replace").strip().removeprefix("gpushm: ")
    if "use the existing broker" in cause:  # the next step of address_in_use
        time.sleep(_PAUSE_SECONDS)
        return
    raise SystemCallError(
        f"start a broker: {cause}",
        ErrorCode.SYSTEM_ERROR,
        "start a broker",
        cause=cause,
        next_step="start one with `gpushm serve`, and connect without start=True",
    ) from unreachable
