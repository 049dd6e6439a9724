# SPDX-License-Identifier: Apache-2.0
"""Exceptions: one class for each error code of the library (docs/errors.md)."""

from __future__ import annotations

import enum
import errno
import re
from typing import Any

__all__ = [
    "Error",
    "ErrorCode",
    # begin: scripts/error_codes.py
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
    "SystemCallError",
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
    "NotSupportedError",
    "SegmentBusyError",
    # end: scripts/error_codes.py
]


class ErrorCode(enum.IntEnum):
    """The reason for a failure. Values never change; new ones may be added."""

    # begin: scripts/error_codes.py
    INVALID_ARGUMENT = 1
    NO_SUCH_SEGMENT = 2
    ALREADY_EXISTS = 3
    PERMISSION_DENIED = 4
    TIMED_OUT = 5
    BROKER_UNREACHABLE = 6
    BROKER_GONE = 7
    PROTOCOL_ERROR = 8
    UNSUPPORTED_VERSION = 9
    QUOTA_EXCEEDED = 10
    OUT_OF_MEMORY = 11
    TOO_MANY_SEGMENTS = 12
    TOO_MANY_DESCRIPTORS = 13
    TOO_MANY_CONNECTIONS = 14
    TOO_MANY_REQUESTS = 15
    DEVICE_NOT_FOUND = 16
    DEVICE_NOT_VISIBLE = 17
    DRIVER_UNAVAILABLE = 18
    DRIVER_ERROR = 19
    WRONG_DESCRIPTOR_KIND = 20
    WRONG_DESCRIPTOR_COUNT = 21
    SIZE_MISMATCH = 22
    FORKED = 23
    PEER_DIED = 24
    STALE_GENERATION = 25
    MESSAGE_TOO_LARGE = 26
    ADDRESS_IN_USE = 27
    AMBIGUOUS_DOMAIN = 28
    ALREADY_PUBLISHED = 30
    SEGMENT_REMOVED = 31
    SYSTEM_ERROR = 32
    NOT_EXPORTABLE = 33
    PID_COLLISION = 34
    GONE_OR_REPLACED = 35
    INVALID_TICKET = 36
    PEER_UNREACHABLE = 37
    SHARE_EXCEEDED = 38
    WRITER_ENDING = 39
    CANCELLED = 40
    VALUE_OUT_OF_RANGE = 41
    TOO_MANY_WAITS = 42
    INVALID_FILE = 43
    NOT_SUPPORTED = 44
    SEGMENT_BUSY = 45
    # end: scripts/error_codes.py

    @classmethod
    def _missing_(cls, value: object) -> ErrorCode | None:
        """A member that is not listed, such as ``UNKNOWN_99``: of a newer library."""
        if not isinstance(value, int):
            return None
        member = int.__new__(cls, value)
        member._name_ = f"UNKNOWN_{value}"
        member._value_ = value
        return member


class Error(Exception):
    """A failure that gpushm reports. ``str()`` is one line: operation, object, cause, next step.

    Each :class:`ErrorCode` has a class of its own below this one; where Python has a class for the
    same failure, such as FileNotFoundError, it is a base, too.
    """

    #: The reason; a member such as ``UNKNOWN_99`` for a code that this package does not know.
    code: ErrorCode
    #: What was tried ("open").
    operation: str
    #: With what (the name of a segment, a path); may be empty.
    object: str
    #: Why it failed.
    cause: str
    #: What to do; may be empty.
    next_step: str
    #: The process that the cause is about, such as the one that has died or has the name, as the
    #: broker sees it (as this process does, without a broker); None: none, or not known.
    pid: int | None
    #: The number that the cause is about, such as a timeline's last value (docs/errors.md says
    #: which, for each code); None: none.
    value: int | None

    def __init__(
        self,
        message: str,
        code: int = 0,
        operation: str = "",
        object: str = "",
        cause: str = "",
        next_step: str = "",
        pid: int | None = None,
        value: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = ErrorCode(code)
        self.operation = operation
        self.object = object
        self.cause = cause
        self.next_step = next_step
        self.pid = pid
        self.value = value

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, tuple[str | int | None, ...]]:
        parts = (self.operation, self.object, self.cause, self.next_step)
        if isinstance(self, SystemCallError):
            return from_parts, (int(self.code), *parts, self.message, self.pid or 0, self.value)
        return type(self), (self.message, int(self.code), *parts, self.pid, self.value)


_KNOWN = frozenset(int(code) for code in ErrorCode)


# begin: scripts/error_codes.py
class InvalidArgumentError(Error, ValueError):
    """An argument, or a call in this state, makes no sense."""


class NoSuchSegmentError(Error, FileNotFoundError):
    """The name is not published, or not in time."""


class AlreadyExistsError(Error, FileExistsError):
    """The name is in use."""


class PermissionDeniedError(Error, PermissionError):
    """The broker or the kernel refuses it to this process."""


class TimedOutError(Error, TimeoutError):
    """It did not happen in time."""


class BrokerUnreachableError(Error, ConnectionRefusedError):
    """No broker answers at the socket."""


class BrokerGoneError(Error, ConnectionResetError):
    """The broker has died; the next request connects to its successor."""


class ProtocolError(Error):
    """The broker has sent something that is not valid."""


class UnsupportedVersionError(Error):
    """Broker and library have no common version."""


class QuotaExceededError(Error):
    """A quota of the domain does not allow it."""


class OutOfMemoryError(Error, MemoryError):
    """The device or the host has not enough memory."""


class TooManySegmentsError(Error):
    """The broker's table is full."""


class TooManyDescriptorsError(Error):
    """A process has no file descriptors left."""


class TooManyConnectionsError(Error):
    """The broker accepts no further connection."""


class TooManyRequestsError(Error):
    """More is in flight, or held, than is allowed."""


class DeviceNotFoundError(Error):
    """There is no such GPU."""


class DeviceNotVisibleError(Error):
    """This process may not use the GPU."""


class DriverUnavailableError(Error):
    """There is no CUDA driver."""


class DriverError(Error):
    """The CUDA driver has failed."""


class WrongDescriptorKindError(Error):
    """A descriptor is not memory of the expected kind."""


class WrongDescriptorCountError(Error):
    """Descriptors are missing."""


class SizeMismatchError(Error, ValueError):
    """The size is another one, or elements are outside the segment."""


class ForkedError(Error):
    """The object belongs to the parent process."""


class PeerDiedError(Error, ProcessLookupError):
    """The other process has died."""


class StaleGenerationError(Error):
    """The segment was replaced."""


class MessageTooLargeError(Error):
    """It does not fit into a message."""


class AddressInUseError(Error, OSError):
    """Another process uses the path."""


class AmbiguousDomainError(Error):
    """Several domains are mounted."""


class AlreadyPublishedError(Error):
    """The segment was published before."""


class SegmentRemovedError(Error):
    """The segment was removed."""


class NotExportableError(Error):
    """The memory cannot be shared; the next step names the remedy."""


class PidCollisionError(Error):
    """Both processes have the same PID."""


class GoneOrReplacedError(Error):
    """The memory was freed, or has another owner."""


class InvalidTicketError(Error, ValueError):
    """The bytes are not a ticket."""


class PeerUnreachableError(Error, ConnectionError):
    """The exporter's broker cannot be reached."""


class ShareExceededError(Error):
    """A principal has used its share of the broker's resources."""


class WriterEndingError(Error):
    """A dead process may still write to the segment."""


class CancelledError(Error):
    """A Stop ended the wait."""


class ValueOutOfRangeError(Error, OverflowError):
    """The value is larger than a timeline can have."""


class TooManyWaitsError(Error):
    """As many streams wait as CUDA has connections."""


class InvalidFileError(Error, ValueError):
    """A file is truncated, or not what its format defines."""


class NotSupportedError(Error):
    """Memory of this kind cannot do that."""


class SegmentBusyError(Error):
    """GPU work, another handle or another process uses it."""


# end: scripts/error_codes.py


class SystemCallError(Error, OSError):
    """A system call has failed: ``errno`` and ``filename`` say which way, and for what.

    It is FileNotFoundError, PermissionError, FileExistsError, NotADirectoryError or
    IsADirectoryError, too, where that is the number.
    """


def _also(base: type[OSError]) -> type[SystemCallError]:
    """SystemCallError, and the class that Python has for the same number."""
    members = {"__doc__": SystemCallError.__doc__, "__module__": __name__}
    return type("SystemCallError", (SystemCallError, base), members)


#: Of a system call: the classes that Python has for the same number.
_OF_NUMBER: dict[int, type[SystemCallError]] = {
    errno.ENOENT: _also(FileNotFoundError),
    errno.EEXIST: _also(FileExistsError),
    errno.ENOTDIR: _also(NotADirectoryError),
    errno.EISDIR: _also(IsADirectoryError),
    errno.EACCES: _also(PermissionError),
    errno.EPERM: _also(PermissionError),
}


#: The exception class of each code; `__all__` has them in the order of the codes.
CLASSES: dict[ErrorCode, type[Error]] = {
    code: globals()[name] for code, name in zip(ErrorCode, __all__[2:], strict=True)
}


def from_parts(
    code: int,
    operation: str,
    object: str,
    cause: str,
    next_step: str,
    message: str,
    pid: int = 0,
    value: int | None = None,
) -> Error:
    """The exception for an error of the library."""
    kind = CLASSES[ErrorCode(code)] if code in _KNOWN else Error
    number = 0
    if kind is SystemCallError and (name := re.search(r"\((E[A-Z0-9]+)\)", cause)):
        number = getattr(errno, name.group(1), 0)
        kind = _OF_NUMBER.get(number, kind)
    result = kind(message, code, operation, object, cause, next_step, pid or None, value)
    if number:
        result.errno, result.strerror, result.filename = number, cause, object  # type: ignore[attr-defined]
    return result
