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

"""The compiled part of gpushm. Use the package gpushm."""

import os
from typing import overload


class Stop:
    """
    Cancels waits: pass it as ``stop`` to any number of them.

    May be shared between threads.
    """

    def __init__(self) -> None: ...

    def request(self) -> None:
        """
        End every wait that was given this object, now or later, with
        :class:`gpushm.CancelledError`. Does not block.
        """

    @property
    def requested(self) -> bool:
        """Whether :meth:`request` was called."""

class Poller:
    """
    Watches what tasks of asyncio wait for (gpushm/_aio.py). One thread calls :meth:`wait`.
    """

    def __init__(self) -> None: ...

    def wait(self) -> list[int]:
        """
        Block until watches are due, and return their keys; none after :meth:`wake`.
        """

    def wake(self) -> None:
        """End the wait of another thread, or the next one."""

    def remove(self, key: int) -> None:
        """Remove the watch of this key, if there is one."""

def try_value(timeline: Timeline, value: int, poller: Poller, key: int, has_waited: bool) -> bool | None:
    """
    True: reached; False: there is a watch; None: only :meth:`Timeline.wait` can tell.
    """

class Timeline:
    """
    A 64-bit counter in shared memory that one process signals and any process of the domain waits
    for, on CPUs and on CUDA streams. Its value only grows.

    ``stream`` arguments are integers (0 and 1: the legacy default stream, 2: the per-thread one,
    else a ``cudaStream_t``), or stream objects of PyTorch, CuPy, Numba or cuda.core.
    A context manager: closes at the end. May be shared between threads.
    """

    @property
    def name(self) -> str:
        """The name; empty for a timeline of a segment."""

    @property
    def own(self) -> bool:
        """Whether this process has created it, and so signals it."""

    @property
    def value(self) -> int:
        """The last value that was signaled. No system call."""

    def signal(self, value: int, *, stream: object = None) -> None:
        """
        Signal a larger value: now, or when ``stream`` has completed its earlier work.

        Does not block; without ``stream``: after streams that have still to signal, and waits at most a
        second for a graph that has.
        Raises gpushm.ValueOutOfRangeError, InvalidArgumentError (not larger than before, or not this
        process's timeline), TimedOutError (a graph has still to signal), DriverError.
        """

    def wait(self, value: int, timeout: float | None = 30.0, *, stream: object = None, stop: Stop | None = None) -> None:
        """
        Wait until ``value`` is reached, at most ``timeout`` seconds.

        With ``stream``: what it is given later waits, and this call does not block, unless too many
        streams wait; synchronise it and call :meth:`check` before its results are used.
        Raises gpushm.TimedOutError, PeerDiedError, GoneOrReplacedError, CancelledError,
        TooManyWaitsError.
        """

    def try_wait(self, value: int, timeout: float | None = 0.0, *, stop: Stop | None = None) -> bool:
        """As :meth:`wait` on the CPU; False if ``value`` is not reached in time."""

    def wait_async(self, value: int, timeout: float | None = 30.0) -> Coroutine[Any, Any, None]:
        """As :meth:`wait`, for asyncio. Cancelling the task ends the wait."""

    def check(self) -> None:
        """
        Raise gpushm.PeerDiedError or GoneOrReplacedError if the timeline had ended before a value was
        reached for which a stream of this process was to wait: what the stream has done since must
        not be trusted. Synchronise the stream first, else gpushm.InvalidArgumentError.
        """

    def set_flags(self, flags: int) -> None:
        """
        Replace the flags (bits 0 to 31) of a timeline that has flags instead of values.
        Raises gpushm.InvalidArgumentError, ValueOutOfRangeError.
        """

    def wait_flags(self, flags: int, timeout: float | None = 30.0, *, stop: Stop | None = None) -> None:
        """Wait until the timeline has any of ``flags``. Raises as :meth:`wait`."""

    def prepare(self, stream: object) -> None:
        """
        Register the timeline's memory with CUDA, before a stream is captured. Takes 100 us.
        Raises gpushm.DriverUnavailableError, DriverError.
        """

    def hand_over(self) -> None:
        """
        Give the timeline to a process that calls :meth:`take_over`, and close this object.

        Blocks for at most a second. Raises gpushm.TimedOutError, InvalidArgumentError.
        """

    def take_over(self, timeout: float | None = 30.0, *, stop: Stop | None = None) -> Timeline:
        """
        Wait until the signaler hands the timeline over or has died, and signal it from then on, by the
        timeline that is returned. Raises gpushm.TimedOutError, AlreadyExistsError, CancelledError.
        """

    def close(self) -> None:
        """
        In the process that created it: end the timeline, which releases all waits; waits at most a
        second for streams. Arrays that refer to it keep it open.
        """

    def __repr__(self) -> str: ...

    def __enter__(self) -> Timeline: ...

    def __exit__(self, type: object, value: object, traceback: object, /) -> None: ...

    def ticket(self, socket: str = '') -> bytes:
        """
        Bytes that :func:`gpushm.import_timeline` of another process opens this timeline with.

        ``socket``: as in :meth:`Segment.ticket`. Raises gpushm.InvalidArgumentError for a timeline that
        belongs to a segment.
        """

class GraphOperations:
    """
    Signals and waits that a CUDA graph contains, of :meth:`StreamBatch.record`. Keeps their timelines
    open: must live as long as the graph is launched.
    """

    def set_values(self, executable: object, stream: object, values: Sequence[int], timeout: float | None = 30.0) -> None:
        """
        Set the values of the next launch on ``stream``, one for each operation, in their order;
        launches that are enqueued already keep theirs.

        ``executable``: a ``cudaGraphExec_t`` as an integer, or a ``torch.cuda.CUDAGraph`` that was
        made with ``keep_graph=True``; the graph of which it was made must still exist. Does not wait
        for the GPU. Raises as :meth:`StreamBatch.enqueue`.
        """

class StreamBatch:
    """
    Up to 64 signals and waits of timelines, in this order, for a CUDA stream by one call of the
    driver, or for a CUDA graph. Keeps the timelines open. Not for several threads at a time.

    Methods that add an operation return the batch: ``StreamBatch().wait(a, 1).signal(b, 2)``.
    They raise gpushm.InvalidArgumentError for a closed timeline.
    """

    def __init__(self) -> None: ...

    def wait(self, timeline: Timeline, value: int) -> StreamBatch:
        """
        What is enqueued later begins when ``value`` is reached, or the timeline has ended.
        """

    def signal(self, timeline: Timeline, value: int) -> StreamBatch:
        """Signal ``value`` when the stream has completed its earlier work."""

    def wait_flags(self, timeline: Timeline, flags: int) -> StreamBatch:
        """As :meth:`wait`, until the timeline has any of these flags."""

    def set_flags(self, timeline: Timeline, flags: int) -> StreamBatch:
        """As :meth:`signal`: replace the flags."""

    def clear(self) -> None:
        """Remove all operations."""

    def __len__(self) -> int: ...

    def enqueue(self, stream: object, timeout: float | None = 30.0) -> None:
        """
        Enqueue all operations, or, if it raises, none; they stay in the batch. On a stream that is
        captured they are recorded, the same at each launch: right for flags.

        Does not block, unless too many streams wait: then at most ``timeout`` seconds. Raises as
        :meth:`Timeline.signal` and :meth:`Timeline.wait` with a stream.
        """

    def record(self, stream: object) -> GraphOperations:
        """
        Record the operations in the graph into which ``stream`` is captured; their values are set
        before each launch. The timelines must be prepared (:meth:`Timeline.prepare`).

        Raises gpushm.InvalidArgumentError (not captured, not prepared), DriverError (driver 545 or
        later is needed).
        """

def dtype_name(dtype: object, /) -> str:
    """
    gpushm's name of an element type. Raises TypeError for one that it does not have, such as a
    big-endian one.
    """

def dtype_size(dtype: object, /) -> int:
    """Bytes of one element of this type. Raises TypeError."""

def dtypes() -> dict[str, str | None]:
    """
    All element types, with their names in tables of tensors; None: it has none.
    """

class Array:
    """
    Elements in shared memory, or in memory of another library: what NumPy, PyTorch, JAX and CuPy
    take without a copy (DLPack, the buffer protocol, ``__cuda_array_interface__``).

    Each array, and each tensor that another library makes of it, keeps the memory mapped and the
    lease alive. Immutable, and may be shared between threads; the elements are not protected.
    """

    def __buffer__(self, flags: int, /) -> memoryview:
        """Of host memory; a buffer keeps it mapped."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of elements of each dimension."""

    @property
    def strides(self) -> tuple[int, ...]:
        """Distance of neighbours in each dimension, in elements."""

    @property
    def dtype(self) -> str:
        """Name of the element type, such as ``"bfloat16"``."""

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""

    @property
    def ndim(self) -> int:
        """Number of dimensions."""

    @property
    def size(self) -> int:
        """Number of elements."""

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""

    @property
    def readonly(self) -> bool:
        """
        Whether the memory is mapped for reading only: a write ends the process (host), or
        the CUDA context.
        """

    @property
    def contiguous(self) -> bool:
        """Whether the elements are in C order without gaps."""

    @property
    def data_ptr(self) -> int:
        """Address of the first element: a device pointer on a GPU."""

    @property
    def ready(self) -> tuple[Timeline, int] | None:
        """The timeline and the value for which consumers wait, or None."""

    def __repr__(self) -> str: ...

    def __len__(self) -> int: ...

    def unflagged(self) -> Array:
        """
        The same array, also for libraries that use DLPack before 1.0, which has no flag for what is
        mapped for reading only. For those that do not write, such as JAX.
        """

    def view(self, dtype: object, /) -> Array:
        """
        The same bytes as elements of another type of the same size. Raises TypeError.
        """

    def numpy(self) -> Any:
        """
        A NumPy array on these elements, without a copy; read-only if they are mapped so.

        Raises TypeError for memory of a GPU, BufferError if :attr:`ready` is not reached.
        """

    def torch(self) -> Any:
        """
        A tensor of PyTorch on these elements, without a copy. PyTorch has no read-only tensors: a
        write to :attr:`readonly` memory ends the process or the CUDA context.
        """

    def jax(self) -> Any:
        """An array of JAX on these elements, without a copy."""

    def cupy(self) -> Any:
        """An array of CuPy on these elements, without a copy."""

    def item(self) -> Any:
        """
        The only element, as a number of Python. Raises ValueError if there are others.
        """

    def __float__(self) -> float: ...

    def __int__(self) -> int: ...

    def __getitem__(self, index: Any, /) -> Array:
        """
        A view of a part: integers, slices with a positive step, ``None`` and ``...``. Raises IndexError.
        """

    def __setitem__(self, index: Any, value: Any, /) -> None:
        """
        Overwrite a part: in host memory as NumPy does, on a GPU as :meth:`copy_from`. Raises
        ValueError for what is mapped for reading only.
        """

    def reshape(self, *shape: int | Sequence[int]) -> Array:
        """
        The same elements in another shape, one dimension of which may be -1. Raises ValueError for an
        array that is not contiguous, or a shape of another number of elements.
        """

    def tobytes(self) -> bytes:
        """
        A copy of the elements in C order.

        Blocks until a GPU has copied them. Raises BufferError if :attr:`ready` is not reached.
        """

    def copy_from(self, source: object, /) -> None:
        """
        Overwrite the elements with those of ``source``, which has as many, of the same type: an object
        with the buffer protocol or ``__dlpack__``, in host memory or, contiguous, on any GPU. Bytes
        (``bytes``, ``bytearray``, a file's ``mmap``) are taken as they are; nothing is converted.

        This array is contiguous; or it has no gaps, and the source the same shape and strides.
        Blocks until a GPU has copied them. Raises ValueError, TypeError, BufferError.
        """

    def __reduce__(self) -> tuple[Any, ...]:
        """
        Pickles the place in a published segment, which the receiver opens by name (SharedTensor).

        Raises TypeError for memory of another library or of a window, gpushm.InvalidArgumentError
        for a segment that is not published, BufferError if :attr:`ready` is not reached.
        """

    def __dlpack__(self, *, stream: int | None = None, max_version: tuple[int, int] | None = None, dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> CapsuleType:
        """
        A DLPack capsule, for ``from_dlpack`` of another library. It keeps the memory mapped.

        On a GPU ``stream`` (None and 1: the legacy default one, 2: the per-thread one, -1: no
        order wanted) waits until :attr:`ready` is reached; this call does not block. In host
        memory :attr:`ready` must be reached. ``copy=True``, and ``dl_device=(1, 0)`` for memory of
        a GPU, give a copy in host memory, and block until it is made.

        Raises BufferError for what cannot be exported so, gpushm.TooManyWaitsError if a stream
        cannot wait now, and gpushm.PeerDiedError if the timeline has ended before.
        """

    def __dlpack_device__(self) -> tuple[int, int]:
        """
        DLPack's device type (1: host memory, 2: CUDA) and the device's ordinal.
        """

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        """
        Version 3, for memory of a GPU and types that it can name; otherwise AttributeError.
        If :attr:`ready` is not reached, the legacy default stream waits for it, and is the
        stream that the consumer must wait for.
        """

    def __array__(self, dtype: object = None, copy: bool | None = None) -> object:
        """
        For NumPy, if the buffer protocol has no format: needs ml_dtypes. Raises TypeError for
        memory of a GPU.
        """

    __dlpack_c_exchange_api__: ClassVar[Any]

def rearrange(array: Array, shape: Sequence[int], strides: Sequence[int], offset: int) -> Array:
    """
    Other elements of the same memory, from the ``offset``-th element of ``array`` on. Raises ValueError
    for elements outside ``array``.
    """

class Segment:
    """
    A segment that is mapped into this process, with its lease.

    The mapping and the lease end when this object is closed and all arrays, buffers and tensors
    that were made of it are gone. Other libraries take its bytes as they take those of
    :class:`Array`: ``torch.from_dlpack(segment)``, and of host memory ``memoryview(segment)``.
    A context manager: closes at the end. May be shared between threads.
    Attributes and methods raise gpushm.InvalidArgumentError after :meth:`close`.
    """

    def __buffer__(self, flags: int, /) -> memoryview:
        """Of host memory; a buffer keeps it mapped."""

    @property
    def name(self) -> str:
        """The name, as it was created."""

    @property
    def size(self) -> int:
        """Bytes, as requested at creation."""

    @property
    def generation(self) -> int:
        """A number that the broker never uses again."""

    @property
    def epoch(self) -> bytes:
        """
        16 random bytes of the broker: with :attr:`generation` they identify this memory.
        """

    @property
    def state(self) -> Literal['live', 'removed', 'exporter-gone', 'broker-gone', 'unknown', 'device-lost', 'suspended']:
        """
        ``"live"``, ``"removed"``, ``"exporter-gone"``, ``"broker-gone"``,
        ``"unknown"``, ``"device-lost"``: its GPU was lost, and the memory with it, or
        ``"suspended"``: this process has unmapped it for a time. In each other state the
        memory stays valid. Reads shared memory only.
        """

    @property
    def device(self) -> str:
        """
        ``"host"``, or the UUID of the GPU or MIG instance where the memory is.
        """

    @property
    def ordinal(self) -> int:
        """
        The GPU that uses the mapping, as CUDA numbers it in this process; -1: host.
        """

    @property
    def backend(self) -> str:
        """How the memory is shared, such as ``"host"`` or ``"cuda-vmm"``."""

    @property
    def access(self) -> Literal['read', 'read-write']:
        """``"read"`` or ``"read-write"``."""

    @property
    def lifetime(self) -> Literal['leased', 'persistent']:
        """
        ``"leased"`` (ends with its last lease) or ``"persistent"`` (until removed).
        """

    @property
    def metadata(self) -> bytes:
        """What was passed to :meth:`publish`; empty before."""

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""

    @property
    def ready(self) -> tuple[Timeline, int] | None:
        """
        For what consumers of the arrays that are made from now on wait: a timeline and its value.
        """

    @ready.setter
    def ready(self, value: tuple[Timeline, int] | None, /) -> None: ...

    def view(self, dtype: object = 'uint8', shape: int | Sequence[int] | None = None, *, offset: int = 0, strides: Sequence[int] | None = None, ready: tuple[Timeline, int] | None = None) -> Array:
        """
        An array on this memory, which keeps it mapped.

        ``dtype``: a name such as ``"bfloat16"``, or a dtype of NumPy, ml_dtypes or PyTorch.
        ``shape``: elements of each dimension; None: one dimension, to the end of the segment.
        ``offset``: in bytes. ``strides``: in elements, not negative; None: C order.
        ``ready``: a timeline and the value that consumers wait for; None: :attr:`ready`.

        Raises gpushm.SizeMismatchError for elements outside the segment, TypeError, ValueError.
        """

    def publish(self, metadata: bytes = b'') -> None:
        """
        Make a created segment visible, with up to 64 KiB of metadata.

        Does not synchronise a stream: finish the writes that readers rely on first, or give them
        a timeline. Blocks for one round trip to the broker, at most the client's request timeout.
        Raises gpushm.AlreadyPublishedError, MessageTooLargeError, BrokerGoneError, TimedOutError.
        """

    def unshare(self) -> None:
        """
        End :meth:`Client.share`: new opens fail, existing mappings remain.

        Blocks for one round trip. Raises gpushm.InvalidArgumentError, TimedOutError.
        """

    def suspend(self, contents: Literal['keep', 'host', 'discard'] = 'keep') -> None:
        """
        Unmap the memory, and keep its address until :meth:`resume`.

        For all segments, arrays and tensors of this process that have this mapping: accesses fail as
        to unmapped memory (a fault of the process or of the GPU) until then. Finish all work that uses
        it first; only work of the legacy default stream is detected. No effect if it is suspended so
        already. Blocks for round trips to the broker, and while contents are copied.

        ``"keep"``: the memory stays with the broker, and with the processes that have it. ``"host"``: it is
        freed, and its contents are copied to host memory of this process. ``"discard"``: it is freed. The
        last two are for the client that has created the segment, while nobody else has it; opens of its
        name wait for the resume.
        Raises gpushm.NotSupportedError (the backend is neither ``"host"`` nor ``"cuda-vmm"``), SegmentBusyError,
        InvalidArgumentError, OutOfMemoryError, NoSuchSegmentError (it was removed), BrokerGoneError,
        DriverError, ValueError.
        """

    def resume(self) -> None:
        """
        Map the memory again, at the same address. After a failure it is suspended as before.

        After ``suspend("host")`` it is a new segment of the same name, with the same contents, published
        if it was; after ``suspend("discard")`` its contents are undefined, and it is not published.
        Raises gpushm.InvalidArgumentError (it is not suspended), AlreadyExistsError (the name is in use),
        OutOfMemoryError, QuotaExceededError, BrokerGoneError, DriverError, TooManyDescriptorsError.
        """

    def read(self, offset: int = 0, size: int | None = None, *, stream: object = None) -> bytes:
        """
        A copy of ``size`` bytes from ``offset`` on; None: to the end.

        Blocks until a GPU has copied them, on a stream of the library that waits for no other. With
        ``stream``, after the work that is enqueued on it, for which it blocks, too.
        Raises gpushm.InvalidArgumentError, DriverError.
        """

    def write(self, data: object, offset: int = 0, *, stream: object = None) -> None:
        """
        Copy contiguous memory of the host or of any GPU (the buffer protocol or ``__dlpack__``)
        into the segment.

        Blocks until a GPU has copied it; memory of a GPU is copied after the legacy default stream,
        or after ``stream``, for which the call blocks, too. Other data has no order against streams
        without ``stream``.
        Raises gpushm.InvalidArgumentError (outside the segment, or mapped for reading only),
        DriverError, TypeError, ValueError.
        """

    def fill(self, value: int, *, stream: object = None) -> None:
        """
        Set every byte. Blocks until a GPU has done so; ``stream`` as in :meth:`read`.
        Raises as :meth:`write`.
        """

    def create_timelines(self, count: int) -> list[Timeline]:
        """
        Create the 1 to 64 timelines that belong to this segment; this process has created it, and
        signals them. Blocks for round trips to the broker.
        Raises gpushm.AlreadyExistsError, InvalidArgumentError.
        """

    def open_timeline(self, index: int, *, timeout: float | None = 0.0, stop: Stop | None = None) -> Timeline:
        """
        Open timeline ``index`` of this segment. Blocks until its creator has created it, at most
        ``timeout`` seconds. Raises gpushm.NoSuchSegmentError, InvalidArgumentError, CancelledError.
        """

    def close(self) -> None:
        """
        Give up this handle. Again: no effect. Does not wait for GPU work that uses the memory:
        synchronise first.
        """

    def __len__(self) -> int: ...

    def __repr__(self) -> str: ...

    def __enter__(self) -> Segment: ...

    def __exit__(self, type: object, value: object, traceback: object, /) -> None: ...

    def __dlpack__(self, *, stream: int | None = None, max_version: tuple[int, int] | None = None, dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> CapsuleType:
        """As :meth:`Array.__dlpack__`, of the bytes (``uint8``)."""

    def __dlpack_device__(self) -> tuple[int, int]:
        """As :meth:`Array.__dlpack_device__`."""

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        """As :attr:`Array.__cuda_array_interface__`, of the bytes."""

    def __array__(self, dtype: object = None, copy: bool | None = None) -> object:
        """For NumPy. Raises TypeError for memory of a GPU."""

    def tensor_table(self) -> str:
        """
        The table of the tensors of a loaded model, or of :meth:`Client.put`, as JSON: as the header of
        a safetensors file, and a superset of it. All tensors are within the segment.

        Blocks while it is copied from a GPU. Raises gpushm.InvalidArgumentError (no tensors, or not
        complete), ProtocolError (a damaged or hostile table), UnsupportedVersionError.
        """

    def publish_tensors(self, table: str | bytes) -> None:
        """
        As :meth:`publish`, with a table of tensors (JSON); the size of the segment is that of
        :func:`gpushm.tensors_size`. Raises InvalidArgumentError, SizeMismatchError, and as
        :meth:`publish`.
        """

    def ticket(self, socket: str = '') -> bytes:
        """
        Bytes that :func:`gpushm.import_ticket` of another process opens this published segment with.

        ``socket``: the path by which importers reach the broker's socket; empty: its absolute path here.
        Raises gpushm.InvalidArgumentError for a segment without a broker.
        """

    def window(self) -> Window:
        """
        Map the memory a second time, at addresses that can show other segments later.

        For the backends ``"host"`` and ``"cuda-vmm"``. While a window shows it, the segment can be suspended
        with ``"keep"`` only, which does not change the window. Blocks for round trips to the broker, and
        while the driver maps.
        Raises gpushm.NotSupportedError, InvalidArgumentError (suspended, or imported without a broker),
        TooManyDescriptorsError, OutOfMemoryError, BrokerGoneError, DriverError.
        """

class Window:
    """
    Addresses at which this process sees the memory of one segment after the other.

    An engine that has captured its addresses in CUDA graphs gets new weights at them without a copy:
    ``window = segment.window()``, tensors of ``window.view(...)``, and ``window.show(next)``. Arrays,
    buffers and tensors of a window keep it, and with it the segment that it shows.
    A context manager: closes at the end. May be shared between threads.
    Attributes and methods raise gpushm.InvalidArgumentError after :meth:`close`.
    """

    def show(self, segment: Segment) -> None:
        """
        Map the memory of another segment at the same addresses, instead of the former one.

        ``segment`` has the size, the chunks, the device and the access of the first one, and may be closed
        afterwards. No effect if it is shown already. Finish all work that uses the window before: CUDA
        graphs, streams, other libraries, and what they have registered at its addresses. Only work of the
        legacy default stream is detected. Blocks for round trips to the broker, and while the driver maps.

        After a failure the former segment is shown, unless :attr:`state` is ``"suspended"``: then nothing
        is mapped, every access fails as to unmapped memory, and another call may succeed.
        Raises gpushm.SizeMismatchError, InvalidArgumentError (another device or access, or suspended),
        NotSupportedError, SegmentBusyError, TooManyDescriptorsError, BrokerGoneError, DriverError.
        """

    def view(self, dtype: object = 'uint8', shape: int | Sequence[int] | None = None, *, offset: int = 0, strides: Sequence[int] | None = None) -> Array:
        """
        An array on the window, as :meth:`Segment.view` makes it; it keeps the window open.

        Its elements are those of the segment that is shown. It cannot be pickled: its addresses are of this
        process. Raises gpushm.SizeMismatchError, InvalidArgumentError (nothing is mapped), TypeError,
        ValueError.
        """

    @property
    def segment(self) -> Segment:
        """
        The segment that is shown, as another open of it: close it. While nothing is mapped, the last one.
        """

    @property
    def state(self) -> Literal['live', 'removed', 'exporter-gone', 'broker-gone', 'unknown', 'device-lost', 'suspended']:
        """
        As :attr:`Segment.state`, of the segment that is shown; ``"suspended"`` while nothing is
        mapped. Reads shared memory only.
        """

    @property
    def data_ptr(self) -> int:
        """
        Address of the first byte, which never changes: a device pointer on a GPU.
        """

    @property
    def size(self) -> int:
        """Bytes, as of each of its segments."""

    @property
    def device(self) -> str:
        """
        What uses the memory: ``"host"``, or ``"cuda:0"`` as CUDA numbers it in this process.
        """

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""

    def close(self) -> None:
        """
        Give up this handle. Again: no effect. The addresses stay reserved as long as an array of the window
        exists. Does not wait for GPU work: synchronise first.
        """

    def __repr__(self) -> str: ...

    def __enter__(self) -> Window: ...

    def __exit__(self, type: object, value: object, traceback: object, /) -> None: ...

class Subscription:
    """
    Events of segments: published, opened, released, removed, the death of a process.

    An asynchronous iterator, and a context manager. At most 1,024 unread events are kept; after
    that a ``"resync"`` event reports that older ones were dropped. May be shared between threads.
    """

    @property
    def present(self) -> list[SegmentInfo]:
        """The segments that existed when the subscription began."""

    def next(self, timeout: float | None = 30.0, *, stop: Stop | None = None) -> Event | None:
        """
        The next event; None after ``timeout`` seconds, also if another thread reads.
        Raises gpushm.BrokerGoneError once for each broker that dies, CancelledError.
        """

    def dispatch(self) -> list[Event]:
        """
        All unread events; none while another thread reads. Does not block.
        Raises gpushm.BrokerGoneError as :meth:`next`.
        """

    def fileno(self) -> int:
        """
        A descriptor for an event loop: readable when :meth:`dispatch` has work to do. Do not read or
        close it.
        """

    def __aiter__(self) -> AsyncIterator[Event]: ...

    def close(self) -> None:
        """
        End the subscription. Calls of other threads that wait end with gpushm.CancelledError.
        Again: no effect.
        """

    def __enter__(self) -> Subscription: ...

    def __exit__(self, type: object, value: object, traceback: object, /) -> None: ...

class Slot:
    """
    A slot that a producer fills; ``torch.from_dlpack(slot)`` are its bytes. A context manager: abandons
    the slot at the end, unless it was published. A slot that is dropped is abandoned, with a
    ResourceWarning.
    """

    @property
    def index(self) -> int:
        """Of the slot."""

    @property
    def nbytes(self) -> int:
        """Bytes of the slot."""

    def view(self, dtype: object = 'uint8', shape: int | Sequence[int] | None = None, *, offset: int = 0) -> Array:
        """
        An array on the slot, as :meth:`Segment.view`. The memory stays mapped as long as the array, but
        its contents are others when the slot was given back. Of a slot or item of a stream, each other
        stream that uses it waits until the slot is free or the item complete; the CPU gets a BufferError
        before. Raises gpushm.InvalidArgumentError when the slot was given back.
        """

    def __dlpack__(self, *, stream: int | None = None, max_version: tuple[int, int] | None = None, dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> CapsuleType:
        """As :meth:`Array.__dlpack__`, of the bytes (``uint8``)."""

    def __dlpack_device__(self) -> tuple[int, int]:
        """As :meth:`Array.__dlpack_device__`."""

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        """As :attr:`Array.__cuda_array_interface__`, of the bytes."""

    def __array__(self, dtype: object = None, copy: bool | None = None) -> object:
        """For NumPy. Raises TypeError for memory of a GPU."""

    def publish(self, metadata: bytes = b'', *, stream: object = None, cpu: bool = False) -> int:
        """
        Publish the item, with up to 256 bytes of metadata, and return its number, from 1: when the
        stream that the slot was acquired for (or ``stream``) has completed its earlier work; now,
        if it was acquired without one, or with ``cpu=True`` (synchronise the stream first).

        Does not wait. Raises gpushm.InvalidArgumentError (published or abandoned before),
        TooManyWaitsError: the slot is still acquired.
        """

    def abandon(self) -> None:
        """
        Do not publish the slot. What a stream still writes into it must be done, or ordered before
        what fills it next. Raises gpushm.InvalidArgumentError (published or abandoned before).
        """

    def __enter__(self) -> Slot: ...

    def __exit__(self, type: object, value: object, traceback: object, /) -> None: ...

def try_acquire(producer: Producer, stream: object, poller: Poller, key: int, has_waited: bool) -> Slot | bool | None:
    """
    A slot; False: there is a watch; None: only :meth:`Producer.acquire` can tell.
    """

class Item:
    """
    An item that a consumer reads; ``torch.from_dlpack(item)`` are its bytes. A context manager: releases
    it at the end, as :meth:`release` does without arguments. An item that is dropped is released so, with
    a ResourceWarning.
    """

    @property
    def index(self) -> int:
        """Of the slot."""

    @property
    def nbytes(self) -> int:
        """Bytes of the slot."""

    def view(self, dtype: object = 'uint8', shape: int | Sequence[int] | None = None, *, offset: int = 0) -> Array:
        """
        An array on the slot, as :meth:`Segment.view`. The memory stays mapped as long as the array, but
        its contents are others when the slot was given back. Of a slot or item of a stream, each other
        stream that uses it waits until the slot is free or the item complete; the CPU gets a BufferError
        before. Raises gpushm.InvalidArgumentError when the slot was given back.
        """

    def __dlpack__(self, *, stream: int | None = None, max_version: tuple[int, int] | None = None, dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> CapsuleType:
        """As :meth:`Array.__dlpack__`, of the bytes (``uint8``)."""

    def __dlpack_device__(self) -> tuple[int, int]:
        """As :meth:`Array.__dlpack_device__`."""

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        """As :attr:`Array.__cuda_array_interface__`, of the bytes."""

    def __array__(self, dtype: object = None, copy: bool | None = None) -> object:
        """For NumPy. Raises TypeError for memory of a GPU."""

    @property
    def number(self) -> int:
        """Of the item, from 1."""

    @property
    def skipped(self) -> int:
        """Items since the previous one that this consumer did not get."""

    @property
    def metadata(self) -> bytes:
        """What the producer has published with it."""

    def release(self, *, stream: object = None, cpu: bool = False) -> None:
        """
        Releases the item: when the stream that it was taken for (or ``stream``) has
        completed its earlier work; now, if it was taken without one, or with ``cpu=True``
        (synchronise the stream first).

        Does not wait. Raises gpushm.InvalidArgumentError (released before).
        """

    def __enter__(self) -> Item: ...

    def __exit__(self, type: object, value: object, traceback: object, /) -> None: ...

def unread(item: Item) -> None:
    """Give an item back to its consumer, whose next call returns it again."""

def try_next(consumer: Consumer, poller: Poller, key: int, has_waited: bool) -> Item | bool | None:
    """
    An item; False: there is a watch; None: only :meth:`Consumer.next` can tell.
    """

class Producer:
    """
    The process that fills a channel. Made by :meth:`Client.producer`. A context manager. May be shared
    between threads.
    """

    @property
    def name(self) -> str:
        """The channel's."""

    def acquire(self, timeout: float | None = 30.0, *, stream: object = None, stop: Stop | None = None) -> Slot:
        """
        A free slot; with ``stream``: one that this stream fills, which waits until
        nobody uses it. Several may be acquired at once. Blocks at most ``timeout`` seconds.
        Raises gpushm.TimedOutError, CancelledError.
        """

    def acquire_async(self, timeout: float | None = 30.0, *, stream: object = None) -> Coroutine[Any, Any, Slot]:
        """
        As :meth:`acquire`, for asyncio. Cancelling the task ends the wait, and abandons the slot.
        """

    def stats(self) -> ProducerStats:
        """Counters. Does not block."""

    def __repr__(self) -> str: ...

    def close(self) -> None:
        """
        End the channel: consumers get the items that are published, and then the end. Slots are
        abandoned. Calls of other threads that wait end with gpushm.CancelledError. Waits at most a
        second for streams.
        """

    def __enter__(self) -> Producer: ...

    def __exit__(self, type: object, value: object, traceback: object, /) -> None: ...

class Consumer:
    """
    A process that reads a channel. Made by :meth:`Client.consumer`. A context manager, and an
    asynchronous iterator of items, each to be released. May be shared between threads.
    """

    @property
    def name(self) -> str:
        """The channel's."""

    def next(self, timeout: float | None = 30.0, *, stream: object = None, stop: Stop | None = None) -> Item | None:
        """
        The next item, or the newest one; None when the producer has closed the channel and all items
        were read. With ``stream``: one that this stream reads, which waits until it is complete;
        synchronise it and call :meth:`check` before its results are used.

        Blocks at most ``timeout`` seconds; each thread has its turn, and its own timeout. Raises
        gpushm.TimedOutError, PeerDiedError (and no new producer within ``resume`` of
        :meth:`Client.consumer`), TooManyRequestsError (it holds as many as it may), CancelledError.
        """

    def next_async(self, timeout: float | None = 30.0) -> Coroutine[Any, Any, Item | None]:
        """
        As :meth:`next` without a stream, for asyncio. Cancelling the task ends the wait; an item that
        it had taken is returned by the next call.
        """

    def check(self) -> None:
        """
        Raise gpushm.PeerDiedError, once, if the producer died before an item was complete that a stream of
        this consumer was given.
        """

    @property
    def ended(self) -> bool:
        """Whether the producer has closed the channel, and all items were read."""

    def __aiter__(self) -> AsyncIterator[Item]: ...

    def __repr__(self) -> str: ...

    def close(self) -> None:
        """
        Leave the channel. Its items are released. Calls of other threads that wait end with
        gpushm.CancelledError. Waits at most a second for streams.
        """

    def __enter__(self) -> Consumer: ...

    def __exit__(self, type: object, value: object, traceback: object, /) -> None: ...

class Client:
    """
    A connection to a broker. Made by :func:`gpushm.connect`.

    Segments and timelines stay usable after it is closed. When the broker dies, requests in flight
    fail with :class:`gpushm.BrokerGoneError`, and the next request connects to its successor.
    A context manager: closes at the end. May be shared between threads.
    Methods block for round trips to the broker, each at most the request timeout, and raise
    BrokerUnreachableError, BrokerGoneError, TimedOutError and ForkedError besides those they name.
    """

    def create(self, name: str, size: int, *, device: Device = 'auto', lifetime: Literal['leased', 'persistent'] = 'leased', chunk_size: int = 0, huge_pages: bool = False, replaces: int = 0) -> Segment:
        """
        Create a segment of ``size`` bytes that only this client sees before
        :meth:`Segment.publish`. Contents are zero on the host, and undefined on GPUs.

        ``device``: an ordinal as CUDA numbers it (``1``, ``"cuda:1"``), a UUID, ``"host"`` or ``"cpu"``,
        a device of PyTorch, JAX, CuPy or cuda.core, or ``"auto"``: the first visible GPU, else
        the host, with a warning. ``lifetime``: ``"leased"`` (freed with its last lease) or
        ``"persistent"`` (until removed). ``chunk_size``: bytes of one physical allocation; 0: a
        single one. ``huge_pages``: 2 MiB pages, host only. ``replaces``: the generation of a
        segment that has the name, and that this process may remove. It keeps the name until the
        new segment is published, which moves the name at once: a process that opens the name
        finds one of the two.

        Raises gpushm.AlreadyExistsError, QuotaExceededError, OutOfMemoryError,
        DeviceNotFoundError, DriverUnavailableError, InvalidArgumentError, and with ``replaces``
        GoneOrReplacedError (another segment has the name) and PermissionDeniedError.
        """

    def open(self, name: str, *, access: Literal['read', 'read-write'] = 'read', timeout: float | None = 0.0, device: Device | None = None, size: int | None = None, stop: Stop | None = None) -> Segment:
        """
        Open a published segment. Blocks until it is published, at most ``timeout`` seconds.

        ``access``: ``"read"`` (mapped for reading only) or ``"read-write"``. ``device``: the GPU
        that uses the memory; None: where the memory is. ``size``: what the segment must have.

        Raises gpushm.NoSuchSegmentError (not published in time), SizeMismatchError,
        DeviceNotVisibleError, PeerDiedError, CancelledError.
        """

    def open_many(self, names: Sequence[str], *, access: Literal['read', 'read-write'] = 'read', timeout: float | None = 0.0, device: Device | None = None, return_errors: bool = False, stop: Stop | None = None) -> list[Any]:
        """
        Open any number of segments with few round trips, in the order of ``names``. ``timeout`` is for
        all of them together.

        Raises the first failure; with ``return_errors``, the list has exceptions in the places of
        segments that cannot be opened. Otherwise as :meth:`open`.
        """

    def open_async(self, name: str, *, access: Literal['read', 'read-write'] = 'read', timeout: float | None = 30.0, device: Device | None = None) -> Coroutine[Any, Any, Segment]:
        """As :meth:`open`, for asyncio. Cancelling the task ends the wait."""

    @overload
    def share(self, name: str, tree: dict[Any, Any] | list[Any] | tuple[Any, ...]) -> SharedTree:
        """
        Share the memory of all arrays of a structure (a state dict) as it is, without a copy.

        Structures and arrays as in :meth:`put`, of memory that can be shared; a reader calls
        :meth:`get`. Each storage becomes a segment ``name/~0``, ``name/~1``, …, unless it is in
        a segment already (``MemPool``). The arrays stay alive until the result is closed.
        Finish the writes that readers rely on first. Blocks for round trips to the broker.

        Raises gpushm.NotExportableError, which names the allocator and the remedy, TypeError,
        and as :meth:`create`; nothing is shared then.
        """

    @overload
    def share(self, name: str, tensor: object, *, lifetime: Literal['leased', 'persistent'] = 'leased', publish: bool = True, metadata: bytes = b'', stream: int | None = None) -> Segment:
        """
        Turn the memory of a tensor (an object with ``__dlpack__``) into a segment, without a copy.

        The segment is the bytes from the first to the last element. The tensor stays alive as long as
        the segment is open here. Finish the writes that readers rely on first.
        Raises gpushm.NotExportableError, which names the allocator and the remedy, and as
        :meth:`create`.
        """

    def put(self, name: str, tree: object, *, device: Device = 'auto', lifetime: Literal['leased', 'persistent'] = 'persistent', replace: bool = False) -> Segment:
        """
        Copy a structure of arrays (a state dict) into one new segment, and publish it.

        ``tree``: dicts (mappings) with str or int keys, lists, tuples, namedtuples, dataclasses and other
        nodes of JAX's pytrees, nested, of arrays in
        memory of the host or of any GPU (objects with ``__dlpack__``, NumPy arrays of ml_dtypes,
        tensors of all types of PyTorch) and of str, int, float, bool and None. NumPy's scalars become
        Python's. An array under several names is copied once, and keeps its strides if it has no
        gaps. ``device``, ``lifetime``: as :meth:`create`. ``replace``: a segment that has the name keeps it
        until this one is complete, which then has it at once; readers of the former one keep it. Blocks
        until all is copied.

        Raises TypeError, with the place in the tree, for what cannot be put, such as big-endian
        elements; and as :meth:`create`.
        """

    def get(self, name: str, framework: str | None = None, *, access: Literal['read', 'read-write'] = 'read', timeout: float | None = 0.0, device: Device | None = None) -> Any:
        """
        The structure that :meth:`put` has published, without a copy: its arrays are views of the
        segment, which stays open as long as one of them.

        ``framework``: ``"numpy"``, ``"jax"``, ``"torch"`` or ``"cupy"``; None:
        :class:`gpushm.Array`. Otherwise as :meth:`open`.
        A segment that :meth:`load_tensors` has loaded is a dict. Raises gpushm.InvalidArgumentError for
        a segment without tensors, and ProtocolError for a damaged or hostile one.
        """

    def create_version(self, name: str, parts: Sequence[str] = (), *, number: int | None = None, keep: int = 1, keep_bytes: int | None = None) -> int:
        """
        Begin the next version of a name, and return its number.

        Create and publish its parts by their names, ``f"{name}@{number}/{part}"``, or, if ``parts`` is
        empty, ``f"{name}@{number}"``; other processes of this user in this container can do so, too.
        Nobody else sees any part before the last one is published. That publishes the version, and
        ``name@latest`` refers to it. If this process, or one that has created a part, ends before, all of
        it is removed.

        ``number``: higher than those of all versions of the name so far; ``None``: the next one.
        ``keep``, ``keep_bytes``: how many published versions of the name stay, and how many bytes of them
        (``None``: no limit), although no process has them open and no alias refers to them.

        Raises gpushm.InvalidArgumentError, AlreadyExistsError (a segment has the bare name),
        PermissionDeniedError (another user's versions), ShareExceededError,
        UnsupportedVersionError (an older broker).
        """

    def withdraw_version(self, name: str, number: int) -> None:
        """
        Let ``name@latest`` refer to the newest other version.

        Raises gpushm.NoSuchSegmentError, PermissionDeniedError.
        """

    def move_alias(self, name: str, alias: str, number: int) -> None:
        """
        Let ``name@alias`` refer to a published version, for all who open it from then on.

        Creates the alias if there is none: a lower-case letter and up to 31 lower-case letters, digits and
        hyphens, not "latest". Raises gpushm.NoSuchSegmentError, InvalidArgumentError (not published),
        PermissionDeniedError, ShareExceededError.
        """

    def remove_alias(self, name: str, alias: str) -> None:
        """
        Raises gpushm.NoSuchSegmentError, InvalidArgumentError ("latest"), PermissionDeniedError.
        """

    def resolve_version(self, name: str) -> int:
        """
        The number of the published version that a name refers to.

        ``name``: ``name@alias``, ``name@number``, or ``name``, which means ``name@latest``. Processes that
        open parts of one version resolve it once, and open ``f"{name}@{number}/{part}"``.
        Raises gpushm.NoSuchSegmentError, which says which ones exist.
        """

    def versions(self, name: str) -> list[VersionInfo]:
        """The versions of a name, the newest first; empty if there are none."""

    def list(self, prefix: str = '') -> list[SegmentInfo]:
        """
        Published segments, and this client's unpublished ones, whose names begin with ``prefix``,
        sorted by name.
        """

    def stat(self, name: str, *, generation: int | None = None) -> SegmentInfo:
        """
        What the broker knows about a segment. Raises gpushm.NoSuchSegmentError; with
        ``generation``, GoneOrReplacedError if another segment has the name now.
        """

    def remove(self, name: str, *, generation: int | None = None) -> None:
        """
        Remove the name; the memory is freed with the last lease. With ``generation``, only if it has
        the name: never a segment that has replaced it.
        Raises gpushm.NoSuchSegmentError, PermissionDeniedError, GoneOrReplacedError (another
        segment has the name now).
        """

    def prefetch(self, prefix: str) -> int:
        """
        Request in advance what opens of persistent segments under ``prefix`` need; returns how many.
        """

    def broker(self) -> BrokerInfo:
        """What the broker says about itself. Connects again if it has died."""

    def create_timeline(self, name: str) -> Timeline:
        """
        Create and publish a timeline with the value 0. Raises gpushm.AlreadyExistsError.
        """

    def open_timeline(self, name: str, *, timeout: float | None = 0.0, stop: Stop | None = None) -> Timeline:
        """
        Open a timeline. Blocks until it is published, at most ``timeout`` seconds.
        Raises gpushm.NoSuchSegmentError, CancelledError.
        """

    def subscribe(self, prefix: str = '') -> Subscription:
        """Events of segments whose names begin with ``prefix``, from now on."""

    def subscribe_async(self, prefix: str = '') -> Coroutine[Any, Any, Subscription]:
        """
        As :meth:`subscribe`, for asyncio: does not block the event loop for the request.
        """

    def trim(self) -> None:
        """Unmap what the import cache keeps and nothing uses."""

    def close(self) -> None:
        """
        End the connection when the last segment that uses it is closed. Again: no effect.
        """

    @property
    def socket(self) -> str:
        """The path of the broker's socket."""

    @property
    def domain(self) -> str:
        """The domain whose segments it sees."""

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""

    def __repr__(self) -> str: ...

    def __enter__(self) -> Client: ...

    def __exit__(self, type: object, value: object, traceback: object, /) -> None: ...

    def producer(self, name: str, slot_size: int, slots: int, *, device: Device = 'auto', huge_pages: bool = False) -> Producer:
        """
        Create a channel of ``slots`` slots of ``slot_size`` bytes, or continue one whose producer has
        ended. Raises gpushm.AlreadyExistsError, SizeMismatchError, and as :meth:`create`.
        """

    def consumer(self, name: str, *, mode: Literal['block', 'latest', 'share'] = 'block', held: int = 0, device: Device | None = None, timeout: float | None = 10.0, resume: float | None = 0.0, stop: Stop | None = None) -> Consumer:
        """
        Join a channel, at its newest item. ``mode``: ``"block"`` (gets each item, and the producer
        waits), ``"latest"`` (gets the newest one) or ``"share"`` (each item is for one of these
        consumers). ``held``: items that it may hold; 0: the default of the mode. ``resume``: seconds
        that :meth:`Consumer.next` waits for the next producer when this one has died; 0: it raises
        PeerDiedError at once, None: as long as its own timeout.

        Blocks until the channel exists and its producer has answered, at most ``timeout`` seconds.
        Raises gpushm.NoSuchSegmentError, QuotaExceededError, TimedOutError, CancelledError.
        """

    def cache_stats(self) -> CacheStats:
        """Counters and contents of the import cache. Reads memory only."""

    def channel_status(self, name: str) -> ChannelStatus:
        """
        A channel and its consumers, as a process sees them that is not a member. Changes nothing.
        Raises gpushm.NoSuchSegmentError.
        """

    def unfence(self, name: str) -> None:
        """
        For operators: end the segment's leases of processes that have died and whose fence is still
        pending, though their GPU work may still write. Raises gpushm.NoSuchSegmentError,
        PermissionDeniedError, InvalidArgumentError (no lease waits for a fence).
        """

    def load_tensors(self, paths: str | bytes | os.PathLike[Any] | Sequence[str | bytes | os.PathLike[Any]], name: str, *, device: Device = 'auto', threads: int | None = None, reading: Literal['auto', 'cached', 'direct'] = 'auto', verify: Literal['auto', 'full'] = 'auto', replace: bool = False, tensors: Sequence[str] | None = None, slices: Mapping[str, tuple[int, ...] | Sequence[tuple[int, ...]]] | None = None, timeout: float | None = 3600.0, progress: Callable[[int, int, int, bool], object] | None = None, stop: Stop | None = None) -> Segment:
        """
        Load safetensors files into a persistent segment, once for all processes that call this at
        the same time, and open it for reading. At once if the name has this model already.

        ``paths``: files, an index (``*.index.json``), or a folder of a model. ``device``: as
        :meth:`create`. ``threads``: 1 to 64 that read; None: as many as there are CPUs, 8 to 16.
        ``reading``: ``"cached"``, ``"direct"`` (O_DIRECT), or ``"auto"``: direct if most of a file
        is not in the page cache. ``progress`` is called ten times a second with the bytes that are
        loaded, the bytes of all tensors, the bytes that a loader before has left, and whether this
        process reads; what it raises ends the load.

        ``verify``: whether files are those of a model that is there: ``"auto"`` by size, times and
        inode, and where these differ by all bytes; ``"full"`` always by all bytes. ``replace``: if the
        name has another model, or former contents of these files, the new one is loaded beside it
        and gets the name when it is complete; users of the former one keep that.

        ``tensors``: names or patterns (as :mod:`fnmatch`) of those that are loaded; None: all. ``slices``:
        by names or patterns, ``(dim, begin, end)`` in elements, ``(dim, begin, end, parts)`` in equal
        parts (:func:`shard`), or a list of them: those of one dimension are joined in its order, as for
        fused matrices. What is loaded is contiguous. Each selection needs a name of its own.

        Raises gpushm.InvalidFileError (also if a file changes meanwhile), AlreadyExistsError (the name
        has another model or selection, or the files have changed since they were loaded),
        InvalidArgumentError (tensors or slices that the files do not have), ValueError, TypeError,
        TimedOutError, CancelledError, and as :meth:`create` and :meth:`open`.
        """

    def open_tensors(self, name: str, *, device: Device | None = None, timeout: float | None = 0.0, stop: Stop | None = None) -> Segment:
        """
        Open a segment with tensors for reading. Blocks until it is published and complete, at most
        ``timeout`` seconds.

        Raises gpushm.InvalidArgumentError (it has no tensors), TimedOutError (it is still loaded, or
        its loader has died), and as :meth:`open`.
        """

def connect(socket: str | os.PathLike[str] | None = None, *, timeout: float | None = 0.0, request_limit: float | None = 30.0, cache_bytes: int | None = None, cache_entries: int | None = None, prefetch: Sequence[str] = (), stop: Stop | None = None, start: bool = False) -> Client:
    """
    Connect to a broker.

    ``socket``: its path; None: ``$GPUSHM_SOCKET``, else the one domain under ``/run/gpushm/d``, else
    the broker of this user, in ``$XDG_RUNTIME_DIR/gpushm`` (docs/cli.md, Broker selection).
    ``timeout``: seconds to wait for a broker that is not running yet; 0: do not wait, None: no limit.
    ``request_limit``: seconds for each request. ``cache_bytes``, ``cache_entries``: limits of the import
    cache; None: from the environment, else 64 GiB and 256. ``prefetch``: names that the caller is about to
    open, which are requested together with the connection: opening them then only maps them. Until it is
    opened and closed, or until :meth:`Client.trim`, each is a lease. Names that are not published yet are
    left out. ``start``: if no broker answers, start one in the background, ``gpushm serve --detach
    --idle-exit 60s``: it exits a minute after its last client, unless it has segments. Processes that do
    this at once get the same one. Blocks until it is ready, at most ``timeout``, or 20 seconds.

    Raises gpushm.BrokerUnreachableError, SystemCallError (a broker cannot be started),
    AmbiguousDomainError, PermissionDeniedError, UnsupportedVersionError, InvalidArgumentError (a name),
    TimedOutError, CancelledError.
    """

def connect_async(socket: str | os.PathLike[str] | None = None, *, timeout: float | None = 0.0, request_limit: float | None = 30.0, cache_bytes: int | None = None, cache_entries: int | None = None, prefetch: Sequence[str] = (), start: bool = False) -> Coroutine[Any, Any, Client]:
    """As :func:`connect`, for asyncio. Cancelling the task ends the wait."""

class Broker:
    """
    A broker in this process, on a thread of the library that needs no GIL. Ends when it is closed or
    dropped, which frees persistent segments; a context manager. A child that is forked is not the
    broker: it gets gpushm.ForkedError, and ends nothing. May be shared between threads.
    """

    def __init__(self, socket: str | os.PathLike[str] | None = None, *, domain: str = 'default', lock: str | os.PathLike[str] | None = None, mode: int = 0o660, group: int | None = None, accept_fake_chunks: bool = False, **limits: int) -> None:
        """
        ``socket``: its path; None: one of its own, in a new directory that only this user can reach,
        below ``$XDG_RUNTIME_DIR`` or the temporary directory. ``lock``: the file whose lock keeps other
        brokers off the socket; None: ``<socket>.lock``. ``mode``, ``group``: of the socket.
        ``accept_fake_chunks``: for the fake driver of tests. ``limits``: by their names in
        ``gpushm_broker_limits`` (broker.h), such as ``quota_bytes`` and ``max_segments``.

        Blocks until clients can connect. Raises gpushm.AddressInUseError, PermissionDeniedError,
        InvalidArgumentError, TypeError for an unknown limit, ValueError.
        """

    @property
    def socket(self) -> str:
        """The path of the socket, for :func:`gpushm.connect`."""

    @property
    def epoch(self) -> bytes:
        """16 random bytes, others for each broker."""

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""

    def statistics(self) -> BrokerStatistics:
        """
        Its contents, and counters since its start. Does not block; not a consistent snapshot.
        Raises gpushm.ForkedError in a child of the process that has started it.
        """

    def close(self) -> None:
        """Stop it, and wait until its thread has ended. Again: no effect."""

    def __repr__(self) -> str: ...

    def __enter__(self) -> Broker: ...

    def __exit__(self, type: object, value: object, traceback: object, /) -> None: ...

class FileExport:
    """
    Sharing through a directory that two containers both have mounted, and nothing else: a broker in
    this process on the socket ``PATH.sock``, and a file at PATH for :func:`gpushm.import_file`.
    Ends when it is closed or dropped; a context manager. In a forked child it belongs to the
    parent. May be shared between threads.
    """

    def __init__(self, path: str | os.PathLike[str], *, file_mode: int = 0o644, socket_mode: int = 0o666, accept_fake_chunks: bool = False) -> None:
        """
        Start the broker; :meth:`write` writes the file. ``accept_fake_chunks``: as :class:`Broker`.

        Blocks until clients can connect. Raises gpushm.AddressInUseError (a live exporter's),
        PermissionDeniedError, InvalidArgumentError (a path too long for a socket's address).
        """

    @property
    def path(self) -> str:
        """Of the file."""

    @property
    def client(self) -> Client:
        """Connected to this export's broker. Closed with this object."""

    def write(self, segment: Segment) -> None:
        """
        Write the file, or replace it: it describes ``segment``, a published one of :attr:`client`.
        Raises gpushm.InvalidArgumentError, AddressInUseError, PermissionDeniedError.
        """

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""

    def close(self) -> None:
        """
        Remove the file and end the broker; its segments stay mapped where they are. Again: no effect.
        """

    def __enter__(self) -> FileExport: ...

    def __exit__(self, type: object, value: object, traceback: object, /) -> None: ...

def from_dlpack(tensor: object, /, *, stream: int | None = None) -> Array:
    """
    An array on the memory of another library's tensor, which stays alive as long as the array:
    an object with ``__dlpack__`` or ``__cuda_array_interface__``.

    ``stream``: the CUDA stream that will use the memory, as in :meth:`Array.__dlpack__`.
    Raises BufferError, TypeError, and what the tensor's ``__dlpack__`` raises.
    """

def exchange(array: Array, table: object, /) -> Any:
    """
    A tensor of another library on the memory of the array, as its ``from_dlpack`` makes it.
    ``table``: ``__dlpack_c_exchange_api__`` of its tensors' type. Does not block: the library's
    current stream waits for :attr:`Array.ready`. Raises as :meth:`Array.__dlpack__`, and what
    the library raises.
    """

class TensorTable:
    """A table of tensors that the library has checked."""

    def names(self) -> list[str]:
        """The names of the tensors in the order of their places."""

    def __contains__(self, name: object, /) -> bool:
        """Whether there is a tensor of that name."""

    def entry(self, name: str, /) -> dict[str, Any]:
        """
        One tensor, as in the table as JSON, without its hash. Raises KeyError.
        """

    def metadata(self) -> dict[str, str] | None:
        """
        The texts of ``__metadata__``, in the order of their keys; None without them.
        """

    def arrays(self, segment: Segment, types: dict[str, str], /) -> dict[str, Array | None]:
        """
        All tensors by name, in the order of their places. ``types``: names of element types,
        by their names in the table. None for a tensor of another type, or that has no array.
        """

    def exchange(self, segment: Segment, types: dict[str, str], table: object, /) -> dict[str, Any]:
        """
        All tensors by name, in the order of their places, as tensors of another library: see
        ``exchange``. ``types``: names of element types, by their names in the table. None for
        a tensor of another type, or that cannot be exchanged.
        """

def read_tensor_table(segment: Segment, /) -> TensorTable:
    """The table of a segment, as Segment.tensor_table."""

def tensors_size(table: str | bytes) -> int:
    """
    The size of a segment for :meth:`Segment.publish_tensors` with this table, whose
    ``data_offsets`` are from the segment's first byte, at multiples of 256.

    Raises gpushm.InvalidArgumentError for a table that is not valid.
    """

def find_memory(address: int, size: int) -> Array | None:
    """
    The bytes at an address, if a segment that this process has open under a name has all of them.
    """

class TorchPool:
    """
    Allocates memory of GPUs as segments ``name/0``, ``name/1``, …, by C functions that PyTorch calls. Use gpushm.MemPool.
    """

    def __init__(self, client: Client, name: str) -> None: ...

    def close(self) -> None:
        """No more allocations. Memory that is allocated stays."""

    @property
    def malloc_symbol(self) -> str:
        """
        Of this module: ``void* f(ssize_t size, int device, cudaStream_t stream)``.
        """

    @property
    def live(self) -> int:
        """Number of segments that exist."""

    @property
    def last_error(self) -> Exception | None:
        """Why the last allocation failed that did."""

class TicketFile:
    """
    A ticket in a file, which is removed when this is closed. A context manager.
    """

    def close(self) -> None:
        """Remove the file. Again: no effect."""

    def __enter__(self) -> TicketFile: ...

    def __exit__(self, type: object, value: object, traceback: object, /) -> None: ...

def export_memory(tensor: object, *, stream: int | None = None) -> bytes:
    """
    A ticket of memory that needs no broker: of cudaMalloc, by a handle that works in every PID
    namespace. Importers get the whole allocation. Keep the tensor until they are done.
    Raises gpushm.NotExportableError, DriverError.
    """

def import_ticket(ticket: bytes, *, access: Literal['read', 'read-write'] = 'read', device: Device | None = None, directory: str | os.PathLike[str] | None = None, stop: Stop | None = None) -> Segment:
    """
    Map the memory that a ticket describes, through its broker if it names one.

    ``access``, ``device``: as :meth:`Client.open`; memory by a handle is always read-write.
    ``directory``: of a socket that the ticket names without a slash.
    Raises gpushm.InvalidTicketError, UnsupportedVersionError, PeerUnreachableError,
    PeerDiedError, GoneOrReplacedError, PidCollisionError, DeviceNotVisibleError, and as
    :meth:`Client.open`.
    """

def import_file(path: str | os.PathLike[str], *, access: Literal['read', 'read-write'] = 'read', device: Device | None = None, timeout: float | None = 0.0, stop: Stop | None = None) -> Segment:
    """
    As :func:`import_ticket`, of a file that a live process has written; waits for it at most
    ``timeout`` seconds. Raises gpushm.NoSuchSegmentError, too.
    """

def write_ticket_file(path: str | os.PathLike[str], ticket: bytes, *, mode: int = 0o600) -> TicketFile:
    """
    Write a ticket for :func:`import_file`. The file is removed when the result is closed, and
    a reader sees when this process has died. Replaces the file of a dead process.
    Raises gpushm.AddressInUseError (a live process's file), PermissionDeniedError.
    """

def import_timeline(ticket: bytes, *, directory: str | os.PathLike[str] | None = None) -> Timeline:
    """
    Open the timeline that a ticket describes, to wait for it. ``directory``: as
    :func:`import_ticket`. Raises gpushm.InvalidTicketError, PeerDiedError, GoneOrReplacedError,
    PeerUnreachableError, PermissionDeniedError.
    """

def create_local_timeline() -> Timeline:
    """
    A timeline that needs no broker, for processes of one container and one user, which import its
    :meth:`Timeline.ticket`. Raises gpushm.NotExportableError, TooManyDescriptorsError.
    """

def describe_ticket(ticket: bytes) -> TicketInfo:
    """
    The contents of a ticket. Opens nothing. Raises gpushm.InvalidTicketError,
    UnsupportedVersionError.
    """

def waiting_streams() -> WaitingStreams:
    """How many streams of this process wait for timelines, and how many may."""

def open_log() -> None:
    """
    Keep the library's log lines, at most 256, for :func:`take_log_lines`. In a forked child:
    again, as its parent's are not its own.
    """

def close_log() -> None:
    """Discard the library's log lines from now on."""

def take_log_lines() -> list[tuple[int, str]] | None:
    """
    The lines that were kept, with their levels. Blocks until there is one; None: the log was
    closed, and all were taken. One thread at a time.
    """

def library_version() -> tuple[int, int, int]:
    """The version of the loaded libgpushm."""

def error_name(code: int) -> str:
    """
    The stable name of an error code; ``"unknown"`` for one that the library does not know.
    """
