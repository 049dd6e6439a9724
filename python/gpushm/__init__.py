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

from gpushm._core import (
    Array,
    Client,
    Consumer,
    Item,
    Producer,
    Segment,
    Slot,
    Stop,
    Subscription,
    Timeline,
    connect,
    from_dlpack,
    library_version,
    tensors_size,
)
from gpushm._errors import (
    AddressInUseError,
    AlreadyExistsError,
    AlreadyPublishedError,
    AmbiguousDomainError,
    BrokerGoneError,
    BrokerUnreachableError,
    CancelledError,
    DeviceNotFoundError,
    DeviceNotVisibleError,
    DriverError,
    DriverUnavailableError,
    Error,
    ErrorCode,
    ForkedError,
    GoneOrReplacedError,
    InvalidArgumentError,
    InvalidFileError,
    InvalidTicketError,
    MessageTooLargeError,
    NoSuchSegmentError,
    NotExportableError,
    OutOfMemoryError,
    PeerDiedError,
    PeerUnreachableError,
    PermissionDeniedError,
    PidCollisionError,
    ProtocolError,
    QuotaExceededError,
    SegmentRemovedError,
    ShareExceededError,
    SizeMismatchError,
    StaleGenerationError,
    SystemError,
    TimedOutError,
    TooManyConnectionsError,
    TooManyDescriptorsError,
    TooManyRequestsError,
    TooManySegmentsError,
    TooManyWaitsError,
    UnsupportedVersionError,
    ValueOutOfRangeError,
    WriterEndingError,
    WrongDescriptorCountError,
    WrongDescriptorKindError,
)
from gpushm._shared import SharedTensor
from gpushm._tensors import load_safetensors, safe_open
from gpushm._torch import MemPool, load_into, make_private
from gpushm._tree import SharedTree
from gpushm._types import BrokerInfo, Event, ProducerStats, SegmentInfo

__version__ = ".".join(map(str, library_version()))

__all__ = [
    "connect",
    "Client",
    "Segment",
    "Array",
    "from_dlpack",
    "Timeline",
    "Producer",
    "Slot",
    "Consumer",
    "Item",
    "Subscription",
    "Stop",
    "load_safetensors",
    "safe_open",
    "load_into",
    "make_private",
    "MemPool",
    "SharedTree",
    "tensors_size",
    "SharedTensor",
    "SegmentInfo",
    "BrokerInfo",
    "Event",
    "ProducerStats",
    "Error",
    "ErrorCode",
    "InvalidArgumentError",
    "NoSuchSegmentError",
    "AlreadyExistsError",
    "PermissionDeniedError",
    "TimedOutError",
    "BrokerUnreachableError",
    "BrokerGoneError",
    "ProtocolError",
    "UnsupportedVersionError",
    "QuotaExceededError",
    "OutOfMemoryError",
    "TooManySegmentsError",
    "TooManyDescriptorsError",
    "TooManyConnectionsError",
    "TooManyRequestsError",
    "DeviceNotFoundError",
    "DeviceNotVisibleError",
    "DriverUnavailableError",
    "DriverError",
    "WrongDescriptorKindError",
    "WrongDescriptorCountError",
    "SizeMismatchError",
    "ForkedError",
    "PeerDiedError",
    "StaleGenerationError",
    "MessageTooLargeError",
    "AddressInUseError",
    "AmbiguousDomainError",
    "AlreadyPublishedError",
    "SegmentRemovedError",
    "SystemError",
    "NotExportableError",
    "PidCollisionError",
    "GoneOrReplacedError",
    "InvalidTicketError",
    "PeerUnreachableError",
    "ShareExceededError",
    "WriterEndingError",
    "CancelledError",
    "ValueOutOfRangeError",
    "TooManyWaitsError",
    "InvalidFileError",
    "library_version",
]
