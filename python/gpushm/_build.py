# SPDX-License-Identifier: Apache-2.0
"""Interpreters for which the package is built."""

from __future__ import annotations

import sysconfig

__all__: list[str] = []


def require_gil() -> None:
    """Raises ImportError in free-threaded CPython: it has another binary interface than the compiled
    part, whose objects the GIL protects."""
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise ImportError(
            "gpushm does not support free-threaded CPython: its objects are protected by the GIL "
            "(use the interpreter without the suffix t)"
        )


require_gil()
