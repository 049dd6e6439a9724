# SPDX-License-Identifier: Apache-2.0
"""gpushm: shared memory for GPUs.

A process creates a named segment of GPU or host memory; other processes, containers and pods on the
machine open it by name and use the same bytes, without a copy::

    import gpushm

    client = gpushm.connect()
    with client.open("weights", timeout=5) as segment:
        tensor = torch.from_dlpack(segment.view("bfloat16", (4096, 4096)))

Importing it needs neither a GPU nor a driver. Timeouts are in seconds; None: no limit. Waits
release the GIL, and end with Ctrl-C. Failures are subclasses of :class:`gpushm.Error` with
``code``, ``cause`` and ``next_step``.
"""

from __future__ import annotations

from gpushm import _build  # noqa: F401  # first: it refuses other interpreters
from gpushm._arrays import array
from gpushm._core import (
    Array,
    Broker,
    Client,
    Consumer,
    FileExport,
    GraphOperations,
    Item,
    Producer,
    Segment,
    Slot,
    Stop,
    StreamBatch,
    Subscription,
    TicketFile,
    Timeline,
    Window,
    connect,
    connect_async,
    create_local_timeline,
    describe_ticket,
    export_memory,
    from_dlpack,
    import_file,
    import_ticket,
    import_timeline,
    library_version,
    tensors_size,
    waiting_streams,
    write_ticket_file,
)
from gpushm._errors import *  # noqa: F403
from gpushm._errors import __all__  # mypy reads which names __all__ has from this line
from gpushm._log import log_to
from gpushm._shards import Shard
from gpushm._shared import SharedTensor
from gpushm._shared_weights import shared_weights
from gpushm._tensors import load_safetensors, safe_open, shard
from gpushm._torch import MemPool, load_into, make_private
from gpushm._tree import SharedTree
from gpushm._types import (
    BrokerInfo,
    BrokerStatistics,
    CacheStats,
    ChannelStatus,
    ConsumerStatus,
    Event,
    ProducerStats,
    SegmentInfo,
    TicketInfo,
    VersionInfo,
    WaitingStreams,
)
from gpushm._updates import WeightPublisher, WeightSubscriber

__version__ = ".".join(map(str, library_version()))

__all__ = [
    "connect",
    "connect_async",
    "Client",
    "Segment",
    "Window",
    "Array",
    "array",
    "from_dlpack",
    "Timeline",
    "StreamBatch",
    "GraphOperations",
    "Producer",
    "Slot",
    "Consumer",
    "Item",
    "Subscription",
    "Stop",
    "load_safetensors",
    "shard",
    "safe_open",
    "shared_weights",
    "load_into",
    "make_private",
    "WeightPublisher",
    "WeightSubscriber",
    "Shard",
    "MemPool",
    "SharedTree",
    "tensors_size",
    "SharedTensor",
    "import_ticket",
    "describe_ticket",
    "import_file",
    "export_memory",
    "write_ticket_file",
    "TicketFile",
    "Broker",
    "FileExport",
    "create_local_timeline",
    "import_timeline",
    "waiting_streams",
    "log_to",
    "SegmentInfo",
    "BrokerInfo",
    "BrokerStatistics",
    "Event",
    "ProducerStats",
    "CacheStats",
    "ChannelStatus",
    "ConsumerStatus",
    "TicketInfo",
    "VersionInfo",
    "WaitingStreams",
    *__all__,
    "library_version",
]
