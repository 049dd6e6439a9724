# SPDX-License-Identifier: Apache-2.0
"""``python -m gpushm ARGUMENTS``: the command ``gpushm ARGUMENTS``, which replaces this process."""

from __future__ import annotations

import os
import sys

from gpushm._program import program


def main() -> None:
    """Raises FileNotFoundError if the command is not installed."""
    path = program()
    os.execv(path, [path, *sys.argv[1:]])


if __name__ == "__main__":
    main()
