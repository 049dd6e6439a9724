# SPDX-License-Identifier: Apache-2.0
"""Directories for sockets of brokers that only their user reaches."""

from __future__ import annotations

import os
import tempfile

__all__: list[str] = []

# A socket's path has at most 103 bytes; mkdtemp adds about 16, and the socket's name 7.
_MAX_PARENT_BYTES = 80


def new_directory() -> str:
    """A new directory of mode 0700, in ``$XDG_RUNTIME_DIR`` if that is this user's, else in the temporary
    directory. Raises OSError."""
    return tempfile.mkdtemp(prefix="gpushm-", dir=_parent())


def _parent() -> str:
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    for parent in (runtime, tempfile.gettempdir()):
        if not os.path.isabs(parent) or len(os.fsencode(parent)) > _MAX_PARENT_BYTES:
            continue
        try:
            about = os.stat(parent)
        except OSError:
            continue
        is_own = about.st_uid == os.geteuid() and not about.st_mode & 0o022
        if (is_own or parent != runtime) and os.access(parent, os.W_OK | os.X_OK):
            return parent
    return "/tmp"
