# SPDX-License-Identifier: Apache-2.0
"""The library's log in Python's logging."""

from __future__ import annotations

import atexit
import logging

from gpushm import _core

__all__ = ["log_to"]

_LEVELS = {0: logging.DEBUG, 1: logging.INFO, 2: logging.WARNING, 3: logging.ERROR}


def log_to(logger: logging.Logger | None = None) -> None:
    """Send the library's log lines to a logger from now on; None: the logger ``"gpushm"``.

    Lines are rare: a broker that is gone, a limit that was reached. Without this call they are
    discarded. Handlers run on threads of the library, and must not wait for gpushm there.
    """
    target = logger if logger is not None else logging.getLogger("gpushm")
    _core.set_log(lambda level, text: target.log(_LEVELS.get(level, logging.WARNING), "%s", text))
    atexit.unregister(_core.set_log)
    atexit.register(_core.set_log, None)
