# SPDX-License-Identifier: Apache-2.0
"""What the broker reports."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias

__all__ = [
    "BrokerInfo",
    "BrokerStatistics",
    "CacheStats",
    "ChannelStatus",
    "ConsumerStatus",
    "Event",
    "ProducerStats",
    "SegmentInfo",
    "TicketInfo",
    "WaitingStreams",
]


Access: TypeAlias = Literal["read", "read-write"]
Lifetime: TypeAlias = Literal["leased", "persistent"]
#: A name, an ordinal, or a device of PyTorch, JAX, CuPy or cuda.core (gpushm/_devices.py).
Device: TypeAlias = str | int | Any


class SegmentInfo(NamedTuple):
    """What the broker knows about a segment."""

    name: str
    generation: int
    #: Bytes, as requested.
    size: int
    #: Bytes, rounded up to the device's granularity.
    allocated_size: int
    metadata_size: int
    #: Physical allocations.
    chunks: int
    #: Connections that hold one, including the creator's.
    leases: int
    creator_uid: int
    #: As the broker sees it; 0: not visible to it.
    creator_pid: int
    creator_alive: bool
    published: bool
    backend: str
    lifetime: Lifetime
    state: Literal["live", "removed", "exporter-gone", "broker-gone", "unknown", "device-lost"]
    #: "host", or the UUID of the GPU or MIG instance.
    device: str

    def _repr_html_(self) -> str:
        """For notebooks."""
        from gpushm import _html

        return _html.of_segment_info(self)


class BrokerInfo(NamedTuple):
    """What a broker says about itself."""

    socket: str
    domain: str
    #: As this process sees it; 0: not visible to it.
    pid: int
    #: 16 random bytes, others for each broker.
    epoch: bytes
    max_segments: int
    #: Of the domain; 0: no limit.
    quota_bytes: int
    protocol_version: int


class BrokerStatistics(NamedTuple):
    """Contents of a broker, and counters since its start."""

    segments: int
    allocated_bytes: int
    leases: int
    connections: int
    #: Ended without a goodbye; their leases wait for the fence.
    ending_connections: int
    #: Segments for which an operator dropped such leases.
    unfenced: int
    waiting_opens: int
    #: Opens that returned a segment.
    opens: int
    #: Opens served by a client's import cache, as reported by clients.
    cached_opens: int
    #: By the name of the error code.
    open_failures: dict[str, int]
    #: Opens of at most 10, 20, 50 us and so on to 10 s, each above the previous bound; the last one
    #: counts longer ones.
    open_latency: tuple[int, ...]
    open_latency_sum_ns: int


class Event(NamedTuple):
    """An event of a segment."""

    kind: Literal[
        "published",
        "opened",
        "released",
        "removed",
        "peer-died",
        "resync",
        "unfenced",
        "alias-moved",
    ]
    name: str
    generation: int
    #: After the event.
    leases: int
    #: Of the process that caused it, as the broker sees it; 0: unknown.
    peer_pid: int
    #: Of ``removed``: why the memory is gone, if its GPU was lost. ``xid``: an Xid that is fatal for
    #: memory; ``unreachable``: the driver cannot reach the GPU; ``reported``: by an operator.
    loss: Literal["none", "reported", "xid", "unreachable", "reset"] = "none"
    #: The Xid, if that is the cause; else 0.
    xid: int = 0


class VersionInfo(NamedTuple):
    """A version of a name."""

    number: int
    #: "building": parts are missing; "ending": it has been removed.
    state: Literal["building", "published", "ending"]
    #: Those that refer to it, such as "latest".
    aliases: tuple[str, ...]
    #: Allocated for its segments.
    bytes: int
    #: Its segments that some process has open.
    held: int
    #: "latest" does not refer to it.
    withdrawn: bool


class ProducerStats(NamedTuple):
    """Counters of a channel's producer."""

    #: Number of the last item that was handed to a stream or published.
    announced: int
    #: Number of the last item that is complete.
    published: int
    consumers: int
    #: Consumers whose timelines were not valid.
    dropped: int
    #: It has continued the channel of another producer.
    is_continuation: bool


class ConsumerStatus(NamedTuple):
    """A consumer, as a process sees it that is not a member of the channel."""

    mode: Literal["block", "latest", "share"]
    #: Items; "block": 0.
    may_hold: int
    holds: int
    #: The producer has admitted it.
    is_admitted: bool
    uid: int
    #: As the broker sees it; 0: not visible to it.
    pid: int
    #: Its first item; 0: not admitted.
    start: int
    #: The newest item that it has taken, or holds; "share": how many it was given.
    taken: int
    #: "latest": 0.
    released: int
    #: Complete items after the last one that it has released.
    lag: int


class ChannelStatus(NamedTuple):
    """A channel, as a process sees it that is not a member."""

    slots: int
    slot_size: int
    #: Of this producer.
    first_item: int
    announced: int
    published: int
    #: False: it has closed the channel, or has died.
    has_producer: bool
    is_closed: bool
    producer_uid: int
    #: As the broker sees it; 0: not visible to it.
    producer_pid: int
    consumers: tuple[ConsumerStatus, ...]


class CacheStats(NamedTuple):
    """Counters and contents of a client's import cache."""

    #: Opens without broker and driver.
    hits: int
    #: Opens that sent a request to the broker.
    misses: int
    #: Mappings dropped because of the limits.
    evictions: int
    #: Unused mappings.
    kept_entries: int
    kept_bytes: int
    #: Mappings in use.
    used_entries: int
    used_bytes: int


class TicketInfo(NamedTuple):
    """The contents of a ticket."""

    #: Of the broker's segment.
    name: str
    #: Empty: no broker.
    socket: str
    size: int
    allocated_size: int
    #: 0 without a broker.
    generation: int
    #: As the exporter's PID namespace numbers it.
    exporter_pid: int
    backend: str
    #: Importable without a broker, if the ticket names none.
    has_handle: bool
    #: "host", or the UUID of the GPU or MIG instance.
    device: str


class WaitingStreams(NamedTuple):
    """Streams of this process that wait for timelines (docs/timelines.md)."""

    waiting: int
    #: As many may wait.
    limit: int
    #: Of CUDA.
    connections: int
