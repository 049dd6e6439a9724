# SPDX-License-Identifier: Apache-2.0
"""The command `gpushm`, which is in the wheel."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

__all__: list[str] = []


def _candidates() -> Iterator[Path]:
    """Where installers put a package's programs, this installation's own first."""
    package = Path(__file__).resolve().parent
    try:
        for file in importlib.metadata.files("gpushm") or []:
            if file.name == "gpushm" and file.parent.name in ("bin", "scripts"):
                yield Path(str(file.locate()))
    except importlib.metadata.PackageNotFoundError:
        pass
    yield package.parent / "bin" / "gpushm"  # pip install --target
    yield Path(sysconfig.get_path("scripts")) / "gpushm"
    yield Path(sys.executable).parent / "gpushm"
    if found := shutil.which("gpushm"):
        yield Path(found)


def program() -> str:
    """The path of the command. Raises FileNotFoundError."""
    for path in _candidates():
        if path.is_file() and os.access(path, os.X_OK):
            return os.path.abspath(path)
    raise FileNotFoundError(
        "the command gpushm of this package is not installed: neither in its folder of programs nor in "
        "$PATH (install it again: pip install --force-reinstall gpushm)"
    )
