# SPDX-License-Identifier: Apache-2.0
"""Memory of GPUs, and arrays of it."""

from __future__ import annotations

import ctypes
import pickle
import re
import threading
import weakref

import numpy as np
import pytest

import gpushm
import gpushm._core

import dlpack
from gpus import MIB, Foreign
from support import wait_until


def test_memory_of_a_gpu_is_written_and_read_through_segments(client, segment):
    assert segment.ordinal == 0
    assert segment.device.startswith(("GPU-", "MIG-"))
    assert segment.backend == "cuda-vmm"
    array = segment.view("float32", (16, 16), offset=256)
    expected = np.arange(256, dtype="float32")
    array.copy_from(expected)
    assert array.tobytes() == expected.tobytes()
    assert segment.read(256, 16) == expected[:4].tobytes()
    strided = segment.view("float32", (2, 2), offset=256, strides=(16, 2))
    assert np.frombuffer(strided.tobytes(), "float32").tolist() == [0, 2, 16, 18]
    segment.publish()
    reader = client.open("s")
    assert reader.read(256, 1024) == expected.tobytes()
    assert repr(reader.view("float32", 2)) == (
        '<gpushm.Array shape=(2,) dtype=float32 device=cuda:0 read-only of "s">'
    )


def test_a_segment_of_a_gpu_is_taken_as_its_bytes(client, segment):
    assert segment.__dlpack_device__() == (2, 0)
    address = segment.view().data_ptr
    tensor = dlpack.peek(capsule := segment.__dlpack__(max_version=(1, 0), stream=-1)).tensor
    assert (tensor.device_type, tensor.data, tensor.code, tensor.bits) == (2, address, 1, 8)
    del capsule
    described = segment.__cuda_array_interface__
    assert (described["data"], described["shape"]) == ((address, False), (segment.size,))
    segment.fill(3)
    target = client.create("target", segment.size, device="0")
    target.write(segment)
    assert target.read(0, 4) == b"\x03\x03\x03\x03"
    with pytest.raises(BufferError, match="is on a GPU"):
        memoryview(segment)
    with pytest.raises(TypeError, match="is on a GPU"):
        np.asarray(segment)


def test_dlpack_shares_memory_of_a_gpu_in_place_and_refuses_other_devices(client, segment):
    array = segment.view("bfloat16", (4, 8), offset=512)
    assert array.__dlpack_device__() == (2, 0)
    tensor = dlpack.peek(capsule := array.__dlpack__(max_version=(1, 0), stream=-1)).tensor
    assert (tensor.device_type, tensor.device_id, tensor.data) == (2, 0, array.data_ptr)
    assert tensor.strides[:2] == [8, 1]
    back = gpushm.from_dlpack(array)
    assert (back.__dlpack_device__(), back.data_ptr) == ((2, 0), array.data_ptr)
    del capsule
    for stream in (None, 1, 2):
        array.__dlpack__(max_version=(1, 0), stream=stream)  # nothing to wait for
    with pytest.raises(ValueError, match="stream 0 is not allowed"):
        array.__dlpack__(stream=0)
    with pytest.raises(BufferError, match="cannot be exported to another GPU"):
        array.__dlpack__(dl_device=(2, 7))
    with pytest.raises(BufferError, match="without a copy"):
        array.__dlpack__(dl_device=(1, 0), copy=False)
    with pytest.raises(BufferError, match="does not copy on a GPU"):
        array.__dlpack__(copy=True)
    with pytest.raises(BufferError, match="is on a GPU"):
        memoryview(segment)
    with pytest.raises(TypeError, match="on a GPU"):
        np.asarray(array)


def test_dlpack_copies_memory_of_a_gpu_to_the_host_on_request(segment):
    array = segment.view("int32", 8)
    array.copy_from(np.arange(8, dtype="int32"))
    managed = dlpack.peek(capsule := array.__dlpack__(max_version=(1, 0), dl_device=(1, 0)))
    assert (managed.tensor.device_type, managed.flags) == (1, 2)
    values = (ctypes.c_int32 * 8).from_address(managed.tensor.data)
    assert list(values) == list(range(8))
    del capsule
    np.testing.assert_array_equal(np.from_dlpack(array, device="cpu"), np.arange(8))


def test_the_cuda_array_interface_describes_views(client, segment):
    segment.publish()
    array = client.open("s").view("float32", (4, 8), strides=(16, 1))
    assert array.__cuda_array_interface__ == {
        "shape": (4, 8),
        "typestr": "<f4",
        "data": (array.data_ptr, True),
        "version": 3,
        "strides": (64, 4),
        "stream": None,
    }
    assert segment.view("int8", (4, 8)).__cuda_array_interface__["strides"] is None
    assert segment.view("int8", 0).__cuda_array_interface__["data"] == (0, False)
    assert not hasattr(segment.view("bfloat16", 1), "__cuda_array_interface__")


def test_a_peer_gpu_reads_the_segment(client, segment, driver):
    if driver.count < 2:
        pytest.skip("one GPU")
    segment.publish()
    segment.fill(6)
    reader = client.open("s", device="1")
    assert (reader.ordinal, reader.view().__dlpack_device__()) == (1, (2, 1))
    assert reader.device == segment.device
    assert reader.read(0, 4) == b"\x06" * 4


def test_the_lease_lives_as_long_as_a_tensor_of_a_gpu(client, broker):
    client.create("p", MIB, device="0", lifetime="persistent").publish()
    with gpushm.connect(broker.socket, cache_bytes=0) as other:
        address = dlpack.take(other.open("p").view().__dlpack__(max_version=(1, 0)))
        assert client.stat("p").leases == 1
        dlpack.delete(address)
        wait_until(lambda: client.stat("p").leases == 0, "the lease ends")


def test_memory_of_a_gpu_is_suspended_and_resumed_at_its_address(client, segment):
    segment.write(b"before")
    segment.publish()
    address = segment.view().__cuda_array_interface__["data"][0]
    segment.suspend()
    assert segment.state == "suspended"
    with pytest.raises(gpushm.InvalidArgumentError, match="resume it first"):
        segment.view()
    segment.resume()
    assert segment.view().__cuda_array_interface__["data"][0] == address
    assert segment.read(0, 6) == b"before"


def test_a_window_on_a_gpu_shows_one_segment_after_the_other(client, broker):
    for name, value in (("a", 1), ("b", 2)):
        with client.create(name, MIB, device="0", lifetime="persistent") as made:
            made.fill(value)
            made.publish()
    copy = client.create("copy", MIB, device="0")
    with gpushm.connect(broker.socket) as other, other.open("a") as first:
        window = first.window()
        array = window.view("float32", (2, 8))
        assert (window.device, array.__dlpack_device__()) == ("cuda:0", (2, 0))
        address = array.__cuda_array_interface__["data"]
        assert address == (window.data_ptr, True)
        tensor = dlpack.take(array.__dlpack__(max_version=(1, 0)))
        for name, value in (("b", 2), ("a", 1), ("b", 2)):
            with other.open(name) as following:
                window.show(following)
            copy.write(window.view())
            assert copy.read() == bytes([value]) * MIB
            assert array.__cuda_array_interface__["data"] == address
    with pytest.raises(TypeError, match="memory of a window on a GPU"):
        array.tobytes()
    with pytest.raises(TypeError, match="the array is of a window"):
        pickle.dumps(array)
    window.close()
    del window, array
    assert client.stat("b").leases == 1
    dlpack.delete(tensor)
    wait_until(lambda: client.stat("b").leases == 0, "the tensor was the last user")
    client.remove("a")
    client.remove("b")


def test_memory_shared_from_another_allocator_is_not_suspended(client, driver):
    source = Foreign(driver, np.zeros(2 * MIB, "uint8"))
    shared = client.share("t", source)
    with pytest.raises(
        gpushm.NotSupportedError,
        match=re.escape("suspend segments of the backends cuda-vmm and host only"),
    ):
        shared.suspend()
    assert shared.state == "live"
    shared.unshare()


def test_a_forked_child_cannot_use_memory_of_a_gpu(start, segment):
    segment.publish()
    prelude = "import ctypes; ctypes.CDLL('libcuda.so.1').cuInit(0)"
    child = start(f"""
        {prelude}
        import gpushm, os, sys, warnings
        warnings.simplefilter('ignore', DeprecationWarning)  # of a fork with threads, since 3.12
        array = gpushm.connect(sys.argv[1]).open('s').view('float32', 8)
        pid = os.fork()
        if pid == 0:
            try:
                array.tobytes()
            except gpushm.ForkedError as error:
                print(error.code.name, flush=True)
            del array
            sys.exit(0)
        print(os.waitpid(pid, 0)[1], len(array.tobytes()), flush=True)
        """)
    assert child.succeed() == "FORKED\n0 32\n"


def test_arrays_of_other_libraries_are_taken_by_the_cuda_array_interface(driver):
    values = np.arange(6, dtype="float32").reshape(2, 3)
    source = Foreign(driver, values)
    array = gpushm.from_dlpack(source)
    assert (array.shape, array.dtype, array.data_ptr) == ((2, 3), "float32", source.address)
    assert array.__dlpack_device__() == (2, 0)
    assert gpushm.from_dlpack(Foreign(driver, values.T)).strides == (1, 3)
    source.__cuda_array_interface__ |= {"stream": 77}
    with pytest.raises(BufferError, match="another stream still uses the array"):
        gpushm.from_dlpack(source)
    assert gpushm.from_dlpack(source, stream=77).size == 6
    for change, text in [
        ({"mask": [True]}, "has a mask"),
        ({"strides": (2, 1)}, "not a multiple"),
        ({"strides": (-4, 4)}, "no negative"),
        ({"strides": (4,)}, "different lengths"),
        ({"data": (8, False)}, "does not know the array's address"),
    ]:
        wrong = Foreign(driver, values)
        wrong.__cuda_array_interface__ |= change
        with pytest.raises(BufferError, match=text):
            gpushm.from_dlpack(wrong)
    # The object lives as long as the array.
    seen = weakref.ref(source)
    del source
    assert seen() is not None
    del array
    assert seen() is None


def test_memory_of_any_gpu_is_copied_into_a_segment(client, segment, driver):
    values = np.arange(64, dtype="float32").reshape(8, 8)
    for gpu in range(driver.count):
        driver.use(gpu)
        source = Foreign(driver, values)
        for device in dict.fromkeys(("host", "0", str(driver.count - 1))):
            with client.create(f"to-{device}-of-{gpu}", MIB, device=device) as target:
                target.write(source, 32)
                assert target.read(32, 256) == values.tobytes()
                target.view("float32", (8, 8), offset=512).copy_from(source)
                assert target.read(512, 256) == values.tobytes()
                columns = target.view("float32", (8, 8), offset=1024, strides=(1, 8))
                columns.copy_from(Foreign(driver, values.T))
                assert target.read(1024, 256) == values.tobytes()
                with pytest.raises(gpushm.InvalidArgumentError):
                    target.write(source, MIB - 128)
    driver.use(0)
    with pytest.raises(ValueError, match="the source is not contiguous"):
        segment.write(gpushm.from_dlpack(Foreign(driver, values.T)))


def test_allocations_of_pytorch_are_segments(client, start, driver):
    """What PyTorch calls, without PyTorch."""
    pool = gpushm._core.TorchPool(client, "pool")
    library = ctypes.CDLL(gpushm._core.__file__)
    allocate, release = getattr(library, pool.malloc_symbol), library.gpushm_torch_free
    allocate.restype = ctypes.c_void_p
    allocate.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
    release.restype = None
    release.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
    first, second = allocate(3 * MIB, 0, None), allocate(5, driver.count - 1, None)
    assert pool.live == 2
    found = gpushm._core.find_memory(first + MIB, 2 * MIB)
    assert found.data_ptr == first + MIB
    assert gpushm._core.find_memory(first + MIB, 2 * MIB + 1) is None
    assert gpushm._core.find_memory(first - 1, 2) is None
    found.copy_from(b"\x05" * 2 * MIB)
    child = start(
        """
        import gpushm, os, pickle, sys
        os.environ['GPUSHM_SOCKET'] = sys.argv[1]
        print(sum(pickle.loads(bytes.fromhex(sys.argv[2])).tobytes()), flush=True)
        """,
        pickle.dumps(found).hex(),
    )
    assert child.succeed() == f"{5 * 2 * MIB}\n"
    assert sorted(each.name for each in client.list("pool/")) == ["pool/0", "pool/1"]
    del found
    # No memory: PyTorch gets null, and the cause can be asked.
    assert pool.last_error is None
    assert allocate(1 << 60, 0, None) is None
    assert isinstance(pool.last_error, gpushm.Error)
    assert allocate(0, 0, None) is None
    assert allocate(-1, 0, None) is None
    assert allocate(5, 99, None) is None
    assert isinstance(pool.last_error, gpushm.DeviceNotFoundError)
    # In any order, on any thread, also after the pool.
    threads = [threading.Thread(target=release, args=(first, 0, 0, None))]
    threads[0].start()
    threads[0].join()
    assert pool.live == 1
    pool.close()
    pool.close()
    release(second, 5, 0, None)
    release(12345, 5, 0, None)
    assert (pool.live, client.list("pool/")) == (0, [])
    assert allocate(5, 0, None) is None
    pools = [gpushm._core.TorchPool(client, f"p{i}") for i in range(32)]
    with pytest.raises(ValueError, match="32 pools"):
        gpushm._core.TorchPool(client, "one more")
    assert len({each.malloc_symbol for each in pools}) == 32


def test_a_free_of_pytorch_waits_for_the_stream_that_uses_the_memory(client, driver):
    pool = gpushm._core.TorchPool(client, "busy")
    # Unlike CDLL, calls have the GIL, as those of PyTorch may.
    library = ctypes.PyDLL(gpushm._core.__file__)
    allocate = getattr(library, pool.malloc_symbol)
    allocate.restype = ctypes.c_void_p
    allocate.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
    release = library.gpushm_torch_free
    release.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
    release.restype = None
    memory = allocate(2 * MIB, 0, None)
    assert memory is not None
    stream = driver.stream()
    go = client.create_timeline("go")
    client.open_timeline("go").wait(1, stream=stream)
    was_busy = []

    def free() -> None:
        release(memory, 2 * MIB, 0, None)
        was_busy.append(driver.is_busy(stream))

    thread = threading.Thread(target=free)
    thread.start()
    thread.join(0.2)  # without a synchronisation it would be done
    go.signal(1)  # and with the GIL this thread could not
    thread.join(60)
    assert was_busy == [False]
    assert pool.live == 0
    pool.close()


def test_a_ticket_shares_memory_of_a_gpu_without_a_broker(start, driver):
    """Without a broker."""
    values = np.arange(256, dtype="uint8")
    source = Foreign(driver, values)
    child = start(
        """
        import gpushm, sys
        segment = gpushm.import_ticket(bytes.fromhex(sys.argv[2]), access='read-write')
        print(segment.state, segment.name == '', sum(segment.read(0, 256)), flush=True)
        """,
        gpushm.export_memory(source).hex(),
    )
    assert child.succeed() == f"unknown True {values.sum()}\n"


class _Device:
    """As a framework's device."""

    def __init__(self, **members):
        vars(self).update(members)


def test_gpus_have_the_names_of_frameworks(client):
    kind = type("Device", (_Device,), {})
    names = ["0", "cuda", "cuda:0", "gpu", "gpu:0", 0, np.int64(0)]
    names += [_Device(type="cuda", index=0), _Device(type="cuda", index=None)]
    names += [_Device(platform="gpu", id=7, local_hardware_id=0), kind(device_id=0), kind(id=0)]
    for number, device in enumerate(names):
        with client.create(f"d/{number}", 4096, device=device) as made:
            assert made.ordinal == 0, device
            made.publish()
            with client.open(f"d/{number}", device=device) as opened:
                assert opened.ordinal == 0, device
    with pytest.raises(gpushm.DeviceNotFoundError, match="available: 0 = GPU-"):
        client.create("d/99", 4096, device="cuda:99")


def test_parts_of_an_array_of_a_gpu_are_read_and_written(client):
    array = gpushm.array((4, 6), "float32", name="part", device="cuda:0", client=client)
    assert array.tobytes() == bytes(96)
    array[1] = np.arange(6, dtype="float32")
    assert array[1, 5].item() == 5.0
    assert array[1].tobytes() == np.arange(6, dtype="float32").tobytes()
    assert array[1, 2:4].reshape(2, 1).tobytes() == np.float32([2, 3]).tobytes()
    assert client.get("part")[1].tobytes() == array[1].tobytes()
    with pytest.raises(TypeError):
        array.numpy()
