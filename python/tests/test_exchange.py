# SPDX-License-Identifier: Apache-2.0
"""Arrays, DLPack and the buffer protocol, with NumPy and with a consumer in ctypes."""

from __future__ import annotations

import ctypes
import enum
import mmap
import os

import ml_dtypes
import numpy as np
import pytest

import gpushm
from gpushm._core import exchange

import dlpack

NUMPY_TYPES = [
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64", "complex64", "complex128",
]  # fmt: skip
OTHER_TYPES = {
    "bfloat16": (4, 16, 1),
    "complex32": (5, 32, 1),
    "float8_e3m4": (7, 8, 1),
    "float8_e4m3": (8, 8, 1),
    "float8_e4m3b11fnuz": (9, 8, 1),
    "float8_e4m3fn": (10, 8, 1),
    "float8_e4m3fnuz": (11, 8, 1),
    "float8_e5m2": (12, 8, 1),
    "float8_e5m2fnuz": (13, 8, 1),
    "float8_e8m0fnu": (14, 8, 1),
    "float4_e2m1fn_x2": (17, 4, 2),
}


@pytest.fixture
def segment(client):
    with client.create("s", 4096, device="host") as result:
        yield result


@pytest.fixture
def readonly(client, segment):
    segment.publish()
    with client.open("s") as result:
        yield result


@pytest.mark.parametrize("name", NUMPY_TYPES)
def test_numpy_has_the_same_elements(segment, name):
    expected = np.arange(24).astype(name).reshape(2, 3, 4)
    array = segment.view(name, (2, 3, 4), offset=256)
    array.copy_from(expected)
    for result in (np.from_dlpack(array), np.asarray(array), np.asarray(memoryview(array))):
        assert result.dtype == expected.dtype
        assert result.ctypes.data == array.data_ptr
        np.testing.assert_array_equal(result, expected)
    np.from_dlpack(array)[1, 2, 3] = 1
    assert np.asarray(array)[1, 2, 3] == 1
    back = gpushm.from_dlpack(expected)
    assert (back.dtype, back.shape, back.strides) == (name, (2, 3, 4), (12, 4, 1))
    assert back.data_ptr == expected.ctypes.data
    assert back.tobytes() == expected.tobytes()


@pytest.mark.parametrize("name", OTHER_TYPES)
def test_types_that_numpy_lacks_are_exchanged_by_dlpack(segment, name):
    array = segment.view(name, 8)
    tensor = dlpack.peek(capsule := array.__dlpack__(max_version=(1, 0))).tensor
    assert (tensor.code, tensor.bits, tensor.lanes) == OTHER_TYPES[name]
    assert gpushm.from_dlpack(array).dtype == name
    del capsule
    with pytest.raises(BufferError, match="has no format"):
        memoryview(array)
    if hasattr(ml_dtypes, name):
        result = np.asarray(array)
        assert result.dtype == getattr(ml_dtypes, name)
        assert result.ctypes.data == array.data_ptr
        array.copy_from(np.ones(8, result.dtype))
        assert (result == 1).all()
    else:
        with pytest.raises(TypeError, match="NumPy has no type"):
            np.asarray(array)


def test_types_have_the_names_of_numpy_and_pytorch(segment):
    class TorchType:
        def __str__(self) -> str:
            return "torch.bfloat16"

    for dtype, name in [
        ("f4", "float32"), ("<i8", "int64"), ("=u2", "uint16"), (np.float16, "float16"),
        (np.dtype("complex64"), "complex64"), (float, "float64"), (bool, "bool"), (int, "int64"),
        (ml_dtypes.float8_e5m2, "float8_e5m2"), (np.dtype(ml_dtypes.bfloat16), "bfloat16"),
        (TorchType(), "bfloat16"), ("torch.half", "float16"), (np.bool_, "bool"),
    ]:  # fmt: skip
        assert segment.view(dtype, 1).dtype == name
    with pytest.raises(TypeError, match="gpushm has no dtype float128"):
        segment.view("float128", 1)
    with pytest.raises(TypeError, match="in big-endian order"):
        segment.view(np.dtype(">f4"), 1)


def test_views_have_the_given_shape_strides_and_offset(segment):
    assert segment.view().shape == (4096,)
    assert segment.view("int64", offset=4088).shape == (1,)
    assert segment.view("float32", 3).shape == (3,)
    assert segment.view("float32", np.int64(3)).shape == (3,)
    scalar = segment.view("float32", ())
    assert (scalar.shape, scalar.size, scalar.nbytes) == ((), 1, 4)
    assert np.asarray(scalar).shape == ()
    with pytest.raises(TypeError, match="no length"):
        len(scalar)
    every_second = segment.view("int32", (4, 2), strides=(4, 2))
    assert not every_second.contiguous
    segment.view("int32").copy_from(np.arange(1024, dtype="int32"))
    expected = np.array([[0, 2], [4, 6], [8, 10], [12, 14]], "int32")
    np.testing.assert_array_equal(np.from_dlpack(every_second), expected)
    np.testing.assert_array_equal(np.asarray(every_second), expected)
    assert every_second.tobytes() == expected.tobytes()
    transposed = segment.view("int32", (2, 4), strides=(1, 2))
    assert np.asarray(transposed).strides == (4, 8)
    empty = segment.view("int32", (0, 5))
    assert np.from_dlpack(empty).shape == (0, 5)
    assert dlpack.peek(empty.__dlpack__(max_version=(1, 0))).tensor.data is None
    repeated = segment.view("int32", (3, 2), strides=(0, 1))
    np.testing.assert_array_equal(np.from_dlpack(repeated), [[0, 1]] * 3)
    assert repr(every_second) == (
        '<gpushm.Array shape=(4, 2) dtype=int32 device=host strides=(4, 2) of "s">'
    )


@pytest.mark.parametrize(
    ("arguments", "options", "error", "text"),
    [
        (("int8", 4097), {}, gpushm.SizeMismatchError, "shape .4097,. and dtype int8 at offset 0"),
        (("int8", 1), {"offset": 4097}, gpushm.SizeMismatchError, "bytes from 4097 on"),
        (("int64", 512), {"offset": 8}, gpushm.SizeMismatchError, "not within its 4096 bytes"),
        (("int8", (2**62, 2**62)), {}, gpushm.SizeMismatchError, "not within"),
        (("int64", (2, 2)), {"strides": (2**62, 1)}, gpushm.SizeMismatchError, "not within"),
        (("int8", -1), {}, ValueError, "shape must not be negative"),
        (("int8", (2,)), {"strides": (-1,)}, ValueError, "strides must not be negative"),
        (("int8", (2, 2)), {"strides": (1,)}, ValueError, "different lengths"),
        (("int8",), {"strides": (1,)}, ValueError, "strides need a shape"),
        (("int32", 1), {"offset": 2}, ValueError, "not aligned for dtype int32"),
        (("int8", 1.5), {}, TypeError, "float"),
        (("int8", (1,) * 100), {}, ValueError, "more than 64 dimensions"),
    ],
)
def test_views_that_do_not_fit_are_refused(segment, arguments, options, error, text):
    with pytest.raises(error, match=text):
        segment.view(*arguments, **options)


def test_dlpack_capsules_have_the_version_that_the_consumer_accepts(segment):
    array = segment.view("float32", (2, 3))
    for version in (None, (0, 8)):
        capsule = array.__dlpack__(max_version=version)
        assert dlpack.name_of(capsule) == b"dltensor"
        assert dlpack.peek_unversioned(capsule).tensor.strides[0] == 3
    for version in ((1, 0), (1, 3), (2, 0)):
        capsule = array.__dlpack__(max_version=version)
        assert dlpack.name_of(capsule) == b"dltensor_versioned"
        managed = dlpack.peek(capsule)
        assert (managed.version.major, managed.version.minor) == (1, 3)
        assert managed.flags == 0
        assert managed.tensor.strides[:2] == [3, 1]
        assert managed.tensor.byte_offset == 0


def test_read_only_is_mapped_read_only_and_says_so(readonly):
    array = readonly.view("float32", 4)
    assert array.readonly
    assert dlpack.peek(array.__dlpack__(max_version=(1, 0))).flags == 1
    assert not np.from_dlpack(array).flags.writeable
    assert not np.asarray(array).flags.writeable
    assert memoryview(array).readonly
    assert memoryview(readonly).readonly
    with pytest.raises(BufferError, match="mapped for reading only, which DLPack before 1"):
        array.__dlpack__()
    assert dlpack.name_of(array.unflagged().__dlpack__()) == b"dltensor"
    assert dlpack.peek(array.unflagged().__dlpack__(max_version=(1, 0))).flags == 1
    with pytest.raises(BufferError, match="mapped for reading only"):
        array.copy_from(bytes(16))
    with pytest.raises(TypeError, match="not writable"):
        ctypes.c_char.from_buffer(readonly)


def test_a_write_to_a_read_only_mapping_ends_the_process(start, segment):
    segment.publish()
    child = start("""
        import ctypes, gpushm, sys
        array = gpushm.connect(sys.argv[1]).open('s').view()
        ctypes.memset(array.data_ptr, 1, 1)
        """)
    assert child.end()[0] == -11


def test_copies_by_dlpack_are_contiguous_and_writable(segment, readonly):
    source = readonly.view("int16", (3, 2), strides=(4, 2))
    segment.view("int16").copy_from(np.arange(2048, dtype="int16"))
    managed = dlpack.peek(capsule := source.__dlpack__(max_version=(1, 0), copy=True))
    assert managed.flags == 2
    assert managed.tensor.strides[:2] == [2, 1]
    assert managed.tensor.data % 256 == 0
    del capsule
    result = np.from_dlpack(source, copy=True)
    np.testing.assert_array_equal(result, [[0, 2], [4, 6], [8, 10]])
    assert result.flags.writeable
    segment.fill(0)
    assert result[2, 1] == 10
    assert np.asarray(source, copy=True).flags.writeable
    assert np.asarray(source, dtype="int64").dtype == np.int64
    with pytest.raises(ValueError, match="copy"):
        np.asarray(source, dtype="int64", copy=False)
    # DLPack before 1.0 can express a copy of what is read-only.
    assert dlpack.name_of(source.__dlpack__(copy=True)) == b"dltensor"
    assert (
        dlpack.name_of(source.__dlpack__(max_version=(1, 0), copy=False)) == b"dltensor_versioned"
    )


def test_a_segment_is_taken_as_its_bytes(client, segment, readonly):
    assert segment.__dlpack_device__() == (1, 0)
    whole = np.from_dlpack(segment)
    assert (whole.dtype, whole.shape, whole.flags.writeable) == (np.uint8, (4096,), True)
    assert whole.ctypes.data == segment.view().data_ptr == np.asarray(segment).ctypes.data
    whole[7] = 5
    seen = np.from_dlpack(readonly)
    assert (seen[7], seen.flags.writeable) == (5, False)
    with pytest.raises(BufferError, match="mapped for reading only"):
        readonly.__dlpack__()
    assert gpushm.from_dlpack(readonly).readonly
    assert np.from_dlpack(readonly, copy=True).flags.writeable
    assert not hasattr(segment, "__cuda_array_interface__")
    # As bytes, it is a source for elements of every type.
    target = client.create("target", 4096, device="host")
    target.view("float32").copy_from(readonly)
    target.write(readonly)
    assert target.read() == segment.read()
    # What is not ready is refused, as of an array.
    timeline = client.create_timeline("t")
    segment.ready = timeline, 1
    with pytest.raises(BufferError, match="its timeline has not reached 1"):
        np.from_dlpack(segment)
    timeline.signal(1)
    assert np.from_dlpack(segment)[7] == 5
    readonly.close()
    for use in (np.from_dlpack, gpushm.from_dlpack, type(readonly).__dlpack_device__):
        with pytest.raises(gpushm.InvalidArgumentError, match="this object was closed"):
            use(readonly)
    with pytest.raises(BufferError):
        memoryview(readonly)
    assert seen[7] == 5  # keeps the memory


class Kind(enum.IntEnum):
    """As PyTorch and JAX name devices."""

    CPU = 1


def test_host_memory_refuses_other_devices_and_streams(segment):
    array = segment.view()
    assert array.__dlpack_device__() == (1, 0)
    assert dlpack.name_of(array.__dlpack__(dl_device=(1, 0))) == b"dltensor"
    assert dlpack.name_of(array.__dlpack__(dl_device=(Kind.CPU, 0))) == b"dltensor"
    assert dlpack.name_of(array.__dlpack__(stream=-1)) == b"dltensor"
    with pytest.raises(BufferError, match="cannot be exported to another GPU"):
        array.__dlpack__(dl_device=(2, 0))
    with pytest.raises(ValueError, match="host memory has no stream"):
        array.__dlpack__(stream=1)
    assert not hasattr(array, "__cuda_array_interface__")


def test_the_buffer_protocol_shows_format_shape_and_strides(segment):
    view = memoryview(segment)
    assert (view.format, view.nbytes, view.readonly) == ("B", 4096, False)
    view[10:13] = b"abc"
    assert segment.read(9, 5) == b"\x00abc\x00"
    assert bytes(segment)[10:13] == b"abc"
    array = memoryview(segment.view("float32", (2, 3)))
    assert (array.format, array.shape, array.strides) == ("f", (2, 3), (12, 4))
    strided = segment.view("int32", (2, 2), strides=(4, 2))
    assert memoryview(strided).strides == (16, 8)
    assert not memoryview(strided).contiguous
    simple = ctypes.create_string_buffer(80)  # a Py_buffer
    with pytest.raises(BufferError, match="not contiguous"):
        ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(strided), simple, 0)
    ctypes.c_int32.from_buffer(segment).value = 7
    assert segment.read(0, 4) == b"\x07\x00\x00\x00"


def test_copies_accept_arrays_and_bytes_of_the_same_size(segment):
    array = segment.view("float32", 4)
    source = np.arange(4, dtype="float32")
    for each in (source, memoryview(source), source.tobytes(), gpushm.from_dlpack(source)):
        segment.fill(0)
        array.copy_from(each)
        np.testing.assert_array_equal(np.asarray(array), source)
    segment.write(source, 8)
    segment.write(bytearray(b"x"), 4095)
    assert segment.read(4095) == b"x"
    with pytest.raises(ValueError, match="the source has 12 bytes, the array 16"):
        array.copy_from(source[:3])
    array.copy_from(np.arange(16, dtype="float32").reshape(4, 4)[:, 1])
    assert np.asarray(array).tolist() == [1, 5, 9, 13]
    with pytest.raises(ValueError, match="the source is not contiguous"):
        segment.write(np.zeros((4, 4), "float32")[:, 0])
    # Another order, without gaps: the source has it, too.
    columns = segment.view("float32", (2, 3), strides=(1, 2))
    columns.copy_from(np.arange(6, dtype="float32").reshape(3, 2).T)
    assert segment.view("float32", 6).tobytes() == np.arange(6, dtype="float32").tobytes()
    for other in (np.zeros((2, 3), "float32"), b"x" * 24):
        with pytest.raises(ValueError, match="the source has another order"):
            columns.copy_from(other)
    with pytest.raises(TypeError, match="neither the buffer protocol nor __dlpack__"):
        array.copy_from("text")
    with pytest.raises(ValueError, match="to overwrite have gaps"):
        segment.view("float32", 4, strides=(2,)).copy_from(source)


def test_from_dlpack_uses_memory_in_place(segment):
    source = np.arange(12, dtype="uint8").reshape(3, 4)
    source.flags.writeable = False
    array = gpushm.from_dlpack(source)
    assert array.readonly
    assert np.from_dlpack(array).ctypes.data == source.ctypes.data
    column = gpushm.from_dlpack(source[:, 1])
    assert (column.shape, column.strides) == ((3,), (4,))
    assert column.tobytes() == bytes([1, 5, 9])
    assert gpushm.from_dlpack(segment.view("int32", 3)).data_ptr == segment.view().data_ptr
    with pytest.raises(BufferError, match="no negative shapes and strides"):
        gpushm.from_dlpack(source[::-1])
    with pytest.raises(TypeError, match="has no __dlpack__"):
        gpushm.from_dlpack(b"")

    class Old:
        """A library before DLPack 1.0."""

        def __dlpack__(self, stream=None):
            return segment.view("int32", 2).__dlpack__()

    assert gpushm.from_dlpack(Old()).shape == (2,)

    class Wrong:
        def __dlpack__(self, **_):
            return "no capsule"

    with pytest.raises(ValueError, match="PyCapsule"):
        gpushm.from_dlpack(Wrong())


def test_a_used_capsule_is_not_used_again(segment):
    capsule = segment.view("int32", 2).__dlpack__(max_version=(1, 0))

    class Once:
        def __dlpack__(self, **_):
            return capsule

    gpushm.from_dlpack(Once())
    assert dlpack.name_of(capsule) == b"used_dltensor_versioned"
    with pytest.raises(ValueError, match="PyCapsule"):
        gpushm.from_dlpack(Once())


def test_another_major_version_is_only_released(segment):
    address = dlpack.take(segment.view("int32", 2).__dlpack__(max_version=(1, 0)))
    managed = dlpack.ManagedVersioned.from_address(address)
    managed.version.major = 2
    table = dlpack.exchange_table(gpushm.Array)
    result = ctypes.py_object()
    with pytest.raises(BufferError, match="version 2 of DLPack"):
        table.to_object(ctypes.pointer(managed), ctypes.byref(result))


def test_the_c_exchange_table_converts_arrays_without_a_copy(segment):
    table = dlpack.exchange_table(gpushm.Array)
    assert (table.version.major, table.version.minor, table.previous) == (1, 3, None)
    array = segment.view("float32", (2, 3), offset=64)
    managed = ctypes.POINTER(dlpack.ManagedVersioned)()
    assert table.from_object(array, ctypes.byref(managed)) == 0
    assert managed.contents.tensor.data == array.data_ptr
    assert managed.contents.tensor.shape[:2] == [2, 3]
    result = ctypes.py_object()
    assert table.to_object(managed, ctypes.byref(result)) == 0
    assert (result.value.shape, result.value.data_ptr) == ((2, 3), array.data_ptr)
    tensor = dlpack.Tensor()
    assert table.describe(array, ctypes.byref(tensor)) == 0
    assert (tensor.data, tensor.strides[:2], tensor.bits) == (array.data_ptr, [3, 1], 32)
    stream = ctypes.c_void_p(1)
    assert table.current_stream(2, 0, ctypes.byref(stream)) == 0
    assert stream.value is None
    with pytest.raises(TypeError):
        table.from_object(object(), ctypes.byref(managed))


def test_arrays_are_exchanged_by_the_table_of_another_library(client, segment):
    own = dlpack.exchange_table(gpushm.Array)
    seen = []

    def to_object(tensor, result):
        seen.append((tensor.contents.flags, tensor.contents.tensor.shape[:2]))
        return own.to_object(tensor, result)

    wanted = dlpack.ToObject(to_object)
    table = dlpack.ExchangeTable.from_buffer_copy(own)
    table.to_object = wanted
    array = segment.view("float32", (2, 3), offset=64)
    made = exchange(array, dlpack.table_capsule(table))
    assert (made.shape, made.data_ptr, made.readonly) == ((2, 3), array.data_ptr, False)
    assert seen == [(0, [2, 3])]
    # A newer table refers to one of version 1.
    newer = dlpack.ExchangeTable(version=dlpack.Version(2, 0), previous=ctypes.addressof(table))
    assert exchange(array, dlpack.table_capsule(newer)).data_ptr == array.data_ptr
    newer.previous = None
    with pytest.raises(BufferError, match="no table of DLPack 1"):
        exchange(array, dlpack.table_capsule(newer))
    with pytest.raises(ValueError, match="PyCapsule"):
        exchange(array, array.__dlpack__(max_version=(1, 0)))
    with pytest.raises((TypeError, ValueError)):
        exchange(array, object())
    segment.publish()
    with client.open(segment.name) as opened:
        readonly = exchange(opened.view(), dlpack.table_capsule(table))
    assert readonly.readonly
    assert seen[-1][0] == 1
    assert readonly.tobytes() == bytes(segment.size)


def test_exchange_by_a_table_refuses_an_array_that_is_not_ready(client, segment):
    table = gpushm.Array.__dlpack_c_exchange_api__
    with client.create_timeline("exchange") as timeline:
        array = segment.view("int32", 4, ready=(timeline, 1))
        with pytest.raises(BufferError, match="not ready"):
            exchange(array, table)
        timeline.signal(1)
        assert exchange(array, table).tobytes() == bytes(16)


def test_c_exchange_allocates_in_host_memory():
    table = dlpack.exchange_table(gpushm.Array)
    shape = (ctypes.c_int64 * 2)(3, 4)
    wanted = dlpack.Tensor(None, 1, 0, 2, 2, 32, 1, shape, None, 0)
    managed = ctypes.POINTER(dlpack.ManagedVersioned)()
    errors = []
    report = dlpack.SetError(lambda _context, kind, text: errors.append((kind, text)))
    assert table.allocate(ctypes.byref(wanted), ctypes.byref(managed), None, report) == 0
    assert managed.contents.tensor.data % 256 == 0
    assert managed.contents.flags == 0
    ctypes.memset(managed.contents.tensor.data, 1, 48)
    dlpack.delete(ctypes.addressof(managed.contents))
    wanted.device_type = 2
    assert table.allocate(ctypes.byref(wanted), ctypes.byref(managed), None, report) == -1
    assert errors[0][0] == b"BufferError"


def test_existing_host_memory_is_shared_in_place(client, start):
    seals = 0x0002 | 0x0004 | 0x0001  # F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_SEAL
    descriptor = os.memfd_create("shared", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, 8192)
    import fcntl

    fcntl.fcntl(descriptor, 1033, seals)  # F_ADD_SEALS
    memory = mmap.mmap(descriptor, 8192)
    os.close(descriptor)
    tensor = np.frombuffer(memory, "float32")[1024:]
    tensor[:] = np.arange(1024)
    segment = client.share("shared", tensor[:10], metadata=b"float32")
    assert (segment.size, segment.metadata, segment.state) == (40, b"float32", "live")
    child = start("""
        import gpushm, numpy, sys
        segment = gpushm.connect(sys.argv[1]).open('shared', access='read-write')
        array = numpy.from_dlpack(segment.view(segment.metadata.decode()))
        print(array.tolist(), flush=True)
        array[3] = 42
        """)
    assert child.succeed() == f"{[float(i) for i in range(10)]}\n"
    assert tensor[3] == 42
    segment.unshare()
    with pytest.raises(gpushm.InvalidArgumentError):
        segment.unshare()
    with pytest.raises(gpushm.NotExportableError) as raised:
        client.share("ordinary", np.zeros(10))
    assert raised.value.next_step != ""
    with pytest.raises(ValueError, match="without elements"):
        client.share("empty", np.zeros(0))
