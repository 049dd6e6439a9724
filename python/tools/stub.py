# SPDX-License-Identifier: Apache-2.0
"""Prints the stub of gpushm._core: nanobind's, with a licence and what nanobind does not know."""

from __future__ import annotations

from nanobind.stubgen import StubGen

import gpushm._core

HEADER = """\
# SPDX-License-Identifier: Apache-2.0
# Made by scripts/python.sh stubs.
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from typing import Any, ClassVar, Literal

from typing_extensions import CapsuleType

from gpushm._tree import SharedTree
from gpushm._types import (
    BrokerInfo,
    BrokerStatistics,
    CacheStats,
    ChannelStatus,
    Device,
    Event,
    ProducerStats,
    SegmentInfo,
    TicketInfo,
    VersionInfo,
    WaitingStreams,
)

"""

# Arguments and attributes that are one of a few words: for type checkers. `str` in the signatures of C++.
WORDS = {
    "access": ("read", "read-write"),
    "lifetime": ("leased", "persistent"),
    "mode": ("block", "latest", "share"),
    "contents": ("keep", "host", "discard"),
    "reading": ("auto", "cached", "direct"),
    "verify": ("auto", "full"),
    "state": (
        "live",
        "removed",
        "exporter-gone",
        "broker-gone",
        "unknown",
        "device-lost",
        "suspended",
    ),
}

BUFFER = """
    def __buffer__(self, flags: int, /) -> memoryview:
        \"\"\"Of host memory; a buffer keeps it mapped.\"\"\"
"""


class Stub(StubGen):
    def put(self, value: object, name: str | None = None, parent: object | None = None) -> None:
        """Functions are objects with a signature over those of nanobind (python/src/signature.cpp)."""
        if type(value).__name__ == "function" and type(value).__module__ == "gpushm._core":
            value = value.__wrapped__
        super().put(value, name, parent)


def main() -> None:
    stub = Stub(gpushm._core, quiet=True)
    stub.put(gpushm._core)
    text = stub.get().rstrip()
    text = text.replace(
        "__dlpack_c_exchange_api__: PyCapsule = ...", "__dlpack_c_exchange_api__: ClassVar[Any]"
    )
    for name, words in WORDS.items():
        literal = f"Literal[{', '.join(map(repr, words))}]"
        text = text.replace(f" {name}: str", f" {name}: {literal}")
        text = text.replace(f" {name}(self) -> str", f" {name}(self) -> {literal}")
    for kind in ("Array", "Segment"):
        begin = text.index(f"class {kind}:")
        end = text.index("\n    @property", begin)
        text = text[:end] + BUFFER + text[end:]
    print(HEADER + text)


if __name__ == "__main__":
    main()
