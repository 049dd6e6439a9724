# SPDX-License-Identifier: Apache-2.0
"""The library's log in Python's logging.

Threads of the library only queue lines: a thread that has the GIL may wait for them. One thread of
this module passes the lines on.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading

from gpushm import _core

__all__ = ["log_to"]

_LEVELS = {0: logging.DEBUG, 1: logging.INFO, 2: logging.WARNING, 3: logging.ERROR}
# For the last lines, when the interpreter ends: a handler may take long.
_END_SECONDS = 5.0

_lock = threading.Lock()
_target = logging.getLogger("gpushm")
_thread: threading.Thread | None = None
_has_ended = False


def log_to(logger: logging.Logger | None = None) -> None:
    """Send the library's log lines to another logger than ``"gpushm"``; None: to that one.

    Lines are rare: host memory instead of a GPU, a broker that is gone, a limit that was reached.
    They go to ``logging.getLogger("gpushm")`` from the first connection on, so that Python prints
    warnings where a program does not configure logging. Handlers run on one thread of this
    package, soon after the library has written the line; while they take long, at most 256 lines
    are kept. Does not block.
    """
    global _target
    _target = logger if logger is not None else logging.getLogger("gpushm")
    begin()


def begin() -> None:
    """Pass lines of the library on, from now until the interpreter ends."""
    if _thread is not None or _has_ended:
        return
    with _lock:
        if _thread is None:
            _start()


def _start() -> None:
    global _thread
    _core.open_log()
    _thread = threading.Thread(target=_pass_lines, name="gpushm-log", daemon=True)
    _thread.start()


def _pass_lines() -> None:
    while (lines := _core.take_log_lines()) is not None:
        for level, text in lines:
            try:
                _target.log(_LEVELS.get(level, logging.WARNING), "%s", text)
            except Exception:  # of a logger of the user
                sys.excepthook(*sys.exc_info())


def _stop() -> None:
    """Discard the log from now on, and pass on what was written before."""
    global _thread, _has_ended
    with _lock:
        _has_ended = True
        thread, _thread = _thread, None
        if thread is not None:
            _core.close_log()
            thread.join(_END_SECONDS)


def _in_child() -> None:
    global _lock
    _lock = threading.Lock()
    if _thread is not None:
        _start()


atexit.register(_stop)
os.register_at_fork(after_in_child=_in_child)
