# SPDX-License-Identifier: Apache-2.0
"""GPUs: the fake driver's (test_fake_gpus.py runs this file with it), or real ones."""

from __future__ import annotations

import ctypes
import json
import os
import pickle
import struct
import threading
import time
import weakref

import numpy as np
import pytest

import gpushm
import gpushm._core

import dlpack
from support import Broker, wait_until

FAKE = "GPUSHM_FAKE_GPU_ROOT" in os.environ
NOT_READY = 600
MIB = 1 << 20


class Driver:
    """What a framework does: its context is current, and it has streams."""

    def __init__(self) -> None:
        self.lib = ctypes.CDLL("libcuda.so.1")
        self.check("cuInit", 0)
        count = ctypes.c_int()
        self.check("cuDeviceGetCount", ctypes.byref(count))
        self.count = count.value
        self.use(0)

    def use(self, ordinal: int) -> None:
        context = ctypes.c_void_p()
        self.check("cuDevicePrimaryCtxRetain", ctypes.byref(context), ordinal)
        self.check("cuCtxSetCurrent", context)

    def check(self, function: str, *arguments: object) -> None:
        result = getattr(self.lib, function)(*arguments)
        assert result == 0, f"{function}: {result}"

    def stream(self) -> int:
        handle = ctypes.c_void_p()
        self.check("cuStreamCreate", ctypes.byref(handle), 1)
        return int(handle.value or 0)

    def is_busy(self, stream: int) -> bool:
        result = self.lib.cuStreamQuery(ctypes.c_void_p(stream))
        assert result in (0, NOT_READY)
        return bool(result == NOT_READY)

    def synchronize(self, stream: int) -> None:
        self.check("cuStreamSynchronize", ctypes.c_void_p(stream))


@pytest.fixture(scope="module")
def driver():
    try:
        result = Driver()
    except (OSError, AssertionError) as error:
        pytest.skip(f"no CUDA driver with a GPU: {error}")
    if result.count == 0:
        pytest.skip("no GPU")
    return result


@pytest.fixture
def broker(driver):
    result = Broker(*(["--accept-fake-chunks"] if FAKE else []))
    yield result
    result.stop()


@pytest.fixture
def segment(client):
    with client.create("s", 4 * MIB, device="0") as result:
        result.fill(0)
        yield result


def test_memory_of_a_gpu(client, segment):
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


def test_dlpack_of_a_gpu(client, segment):
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


def test_a_copy_in_host_memory(segment):
    array = segment.view("int32", 8)
    array.copy_from(np.arange(8, dtype="int32"))
    managed = dlpack.peek(capsule := array.__dlpack__(max_version=(1, 0), dl_device=(1, 0)))
    assert (managed.tensor.device_type, managed.flags) == (1, 2)
    values = (ctypes.c_int32 * 8).from_address(managed.tensor.data)
    assert list(values) == list(range(8))
    del capsule
    np.testing.assert_array_equal(np.from_dlpack(array, device="cpu"), np.arange(8))


def test_cuda_array_interface(client, segment):
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


def test_the_stream_of_the_consumer_waits_and_the_host_does_not(client, segment, driver):
    timeline = client.create_timeline("t")
    array = segment.view("float32", 8, ready=(timeline, 1))
    stream = driver.stream()
    started = time.monotonic()
    capsule = array.__dlpack__(max_version=(1, 0), stream=stream)
    assert time.monotonic() - started < 5
    time.sleep(0.05)
    assert driver.is_busy(stream)
    # The host may not read it, and says so at once.
    with pytest.raises(BufferError, match="is not ready"):
        array.tobytes()
    with pytest.raises(BufferError, match="is not ready"):
        array.__dlpack__(max_version=(1, 0), dl_device=(1, 0))
    managed = ctypes.POINTER(dlpack.ManagedVersioned)()
    with pytest.raises(BufferError, match="is not ready"):
        dlpack.exchange_table(gpushm.Array).from_object(array, ctypes.byref(managed))
    # A stream that waits for nothing.
    other = driver.stream()
    array.__dlpack__(max_version=(1, 0), stream=-1)
    assert not driver.is_busy(other)
    timeline.signal(1)
    driver.synchronize(stream)
    timeline.check()
    del capsule
    array.tobytes()


def test_the_default_stream_waits_for_the_cuda_array_interface(client, segment, driver):
    timeline = client.create_timeline("t")
    array = segment.view("float32", 8, ready=(timeline, 1))
    assert array.__cuda_array_interface__["stream"] == 1
    time.sleep(0.05)
    assert driver.is_busy(0)
    timeline.signal(1)
    driver.synchronize(0)
    assert array.__cuda_array_interface__["stream"] is None


def test_a_tensor_that_is_released_while_its_stream_waits(client, broker, segment, driver):
    with gpushm.connect(broker.socket) as other:
        timeline = other.create_timeline("t")
        stream = driver.stream()
        array = segment.view("float32", 8, ready=(client.open_timeline("t"), 1))
        address = dlpack.take(array.__dlpack__(max_version=(1, 0), stream=stream))
        del array
        dlpack.delete(address)
        assert driver.is_busy(stream)
        timeline.signal(1)
        driver.synchronize(stream)
        client.open_timeline("t").close()  # closes what no stream waits for any more


def test_too_many_streams_that_wait(client, segment, driver):
    timeline = client.create_timeline("t")
    array = segment.view("float32", 8, ready=(timeline, 1))
    streams = [driver.stream() for _ in range(40)]
    capsules = []
    started = time.monotonic()

    def export_for_all() -> None:
        for stream in streams:
            capsules.append(array.__dlpack__(max_version=(1, 0), stream=stream))

    with pytest.raises(gpushm.TooManyWaitsError):
        export_for_all()
    assert time.monotonic() - started < 5
    assert len(capsules) >= 4
    timeline.signal(1)
    for stream in streams:
        driver.synchronize(stream)


def test_streams_of_a_timeline(client, driver):
    timeline = client.create_timeline("t")
    opened = client.open_timeline("t")
    first, second = driver.stream(), driver.stream()

    class Torch:
        cuda_stream = first

    class Core:
        def __cuda_stream__(self):
            return 0, second

    timeline.prepare(first)
    opened.wait(1, stream=Core())
    assert driver.is_busy(second)
    timeline.signal(1, Torch())
    driver.synchronize(second)
    opened.check()
    opened.wait(1, 5)


def test_a_signaler_dies_while_a_stream_waits(client, segment, driver, start):
    child = start("""
        import gpushm, sys
        timeline = gpushm.connect(sys.argv[1]).create_timeline('t')
        print('ready', flush=True)
        sys.stdin.readline()
        """)
    assert child.line() == "ready"
    timeline = client.open_timeline("t")
    array = segment.view("float32", 8, ready=(timeline, 1))
    stream = driver.stream()
    array.__dlpack__(max_version=(1, 0), stream=stream)
    assert driver.is_busy(stream)
    child.kill()
    wait_until(lambda: not driver.is_busy(stream), "the stream is released")
    with pytest.raises(gpushm.PeerDiedError):
        timeline.check()
    with pytest.raises(gpushm.PeerDiedError):
        array.__dlpack__(max_version=(1, 0), stream=stream)


def test_a_channel_on_streams(client, driver):
    producer = client.producer("c", MIB, 4, device="0")
    consumer = client.consumer("c", device="0")
    fill, read = driver.stream(), driver.stream()
    for number in range(1, 20):
        slot = producer.acquire(20, stream=fill)
        assert slot.view("float32").__dlpack_device__() == (2, 0)
        slot.publish(b"m", stream=fill)
        item = consumer.next(20, stream=read)
        assert (item.number, item.metadata) == (number, b"m")
        assert item.view().readonly
        item.release(read)
    driver.synchronize(read)
    consumer.check()


def test_a_peer_gpu(client, segment, driver):
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


def test_memory_of_a_gpu_in_a_forked_child(start, segment):
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


def test_a_model_on_a_gpu(client, tmp_path, start, driver):
    gpu = driver.count - 1
    bytes_of = np.arange(3000, dtype="uint16").tobytes()
    header = {
        "w": {"dtype": "BF16", "shape": [20, 50], "data_offsets": [0, 2000]},
        "v": {"dtype": "U8", "shape": [4000], "data_offsets": [2000, 6000]},
    }
    text = json.dumps(header).encode()
    path = tmp_path / "m.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes_of)
    seen: list[tuple[int, int, int, bool]] = []
    loaded = client.load_tensors(
        path, "m", device=str(gpu), threads=2, progress=lambda *how_far: seen.append(how_far)
    )
    assert loaded.ordinal == gpu
    assert all(total == 6000 and is_here for _, total, _, is_here in seen)
    for device in (None, gpu, str(gpu), f"cuda:{gpu}", "cuda"):
        with gpushm.safe_open("m", device=device, client=client) as opened:
            assert opened.keys() == ["v", "w"]
            array = opened.get_tensor("w")
            assert (array.dtype, array.shape, array.readonly) == ("bfloat16", (20, 50), True)
            assert array.__dlpack_device__() == (2, gpu)
            assert array.data_ptr % 256 == 0
            assert array.tobytes() == bytes_of[:2000]
            part = opened.get_slice("w")[3:5, 10:]
            assert part.tobytes() == bytes_of[320:400] + bytes_of[420:500]
    with pytest.raises(ValueError, match="is on GPU"):
        gpushm.safe_open("m", device="cpu", client=client)
    assert client.get("m")["v"].tobytes() == bytes_of[2000:]
    with pytest.raises(TypeError, match="on a GPU"):
        gpushm.safe_open("m", "numpy", client=client).get_tensor("w")
    # By name to another process.
    child = start(
        """
        import gpushm, os, pickle, sys
        os.environ['GPUSHM_SOCKET'] = sys.argv[1]
        array = pickle.loads(bytes.fromhex(sys.argv[2]))
        print(array.dtype, array.shape, sum(array.tobytes()), flush=True)
        """,
        pickle.dumps(array).hex(),
    )
    assert child.succeed() == f"bfloat16 (20, 50) {sum(bytes_of[:2000])}\n"
    client.remove("m")


def test_a_load_while_a_stream_waits(client, driver, tmp_path):
    """For what this thread is to signal: the load must not wait for that stream."""
    text = json.dumps(
        {"w": {"dtype": "U8", "shape": [9 * MIB], "data_offsets": [0, 9 * MIB]}}
    ).encode()
    path = tmp_path / "m.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"x" * 9 * MIB)
    timeline, stream = client.create_timeline("t"), driver.stream()
    timeline.wait(1, stream=stream)
    started = time.monotonic()
    client.load_tensors(path, "m", device="0", timeout=30).close()
    assert time.monotonic() - started < 25
    assert driver.is_busy(stream)
    timeline.signal(1)
    driver.synchronize(stream)
    client.remove("m")


def test_put_on_a_gpu(client):
    tree = {"a": np.arange(100, dtype="float32"), "b": [np.ones((3, 3), "int8"), 5]}
    client.put("m", tree, device="0")
    result = client.get("m")
    assert result["a"].__dlpack_device__() == (2, 0)
    assert result["a"].tobytes() == tree["a"].tobytes()
    assert result["b"][0].shape == (3, 3)
    assert result["b"][1] == 5
    client.remove("m")


class Foreign:
    """Memory of cudaMalloc, as a library has it that knows `__cuda_array_interface__` only."""

    def __init__(self, driver: Driver, values: np.ndarray) -> None:
        self._driver = driver
        pointer = ctypes.c_uint64()
        driver.check("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(values.nbytes))
        self.address = pointer.value
        data = values.tobytes("A")
        driver.check("cuMemcpyHtoD_v2", pointer, data, ctypes.c_size_t(len(data)))
        self.__cuda_array_interface__ = {
            "shape": values.shape,
            "typestr": values.dtype.str,
            "data": (self.address, False),
            "version": 3,
            "strides": None if values.flags.c_contiguous else values.strides,
        }

    def __del__(self) -> None:
        self._driver.check("cuMemFree_v2", ctypes.c_uint64(self.address))


def test_arrays_of_the_cuda_array_interface(driver):
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


def test_copies_from_a_gpu(client, segment, driver):
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


def test_put_of_arrays_of_a_gpu(client, driver):
    values = np.arange(24, dtype="int32").reshape(4, 6)
    tied = Foreign(driver, values)
    tree = {"a": tied, "b": [tied, Foreign(driver, values.T)], "n": 1}
    for name, device in [("on-host", "host"), ("on-gpu", str(driver.count - 1))]:
        segment = client.put(name, tree, device=device)
        result = client.get(name)
        assert result["a"] is result["b"][0]
        assert result["a"].tobytes() == values.tobytes()
        assert result["b"][1].tobytes() == values.T.tobytes("C")
        assert result["b"][1].strides == (1, 6)
        assert segment.size < 4096
        client.remove(name)


READ_TREE = """
    import gpushm, sys
    client = gpushm.connect(sys.argv[1])
    tree = client.get('model', timeout=20)
    print([sum(tree[name].tobytes()) for name in ('a', 'b')], tree['n'],
          tree['a'] is tree['more'][0], tree['b'].strides, tree['empty'].shape, flush=True)
    with gpushm.safe_open('model', client=client) as opened:
        print(opened.keys(), sum(opened.get_slice('a')[1:].tobytes()), flush=True)
    sys.stdin.readline()
    """


def test_share_of_a_structure(client, start, driver):
    values = np.arange(24, dtype="uint8").reshape(4, 6)
    tied = Foreign(driver, values)
    inside = client.create("inside", MIB, device="0")
    inside.publish()
    inner = inside.view("uint8", (6, 4), offset=512, strides=(1, 6))
    inner.copy_from(values.T)
    tree = {"a": tied, "b": inner, "more": (tied,), "n": 7, "empty": np.zeros((0, 2), "int8")}
    shared = client.share("model", tree)
    assert shared.segments == ["model/~0"]  # once, and no second one of what is a segment already
    child = start(READ_TREE)
    assert child.line() == f"[{values.sum()}, {values.sum()}] 7 True (1, 6) (0, 2)"
    assert child.line() == f"['a', 'b', 'empty', 'more.0'] {values[1:].sum()}"
    # No copy: what is written here is seen there.
    reader = client.get("model")
    inner.copy_from(np.zeros((6, 4), "uint8").T.reshape(6, 4, order="F"))
    assert sum(reader["b"].tobytes()) == 0
    shared.close()
    shared.close()
    with pytest.raises(gpushm.NoSuchSegmentError):
        client.get("model")
    assert client.stat("inside").published
    child.say("end")
    assert child.end()[0] == 0
    # A failure in the middle leaves nothing.
    with pytest.raises(gpushm.NotExportableError):
        client.share("model", {"a": tied, "b": np.ones(8)})
    assert [each.name for each in client.list("model")] == []


def test_a_shared_structure_whose_segment_is_another_one(client, driver):
    first = client.create("inside", MIB, device="0")
    first.publish()
    with client.share("model", {"a": first.view("uint8", 16)}):
        client.remove("inside")
        client.create("inside", MIB, device="0").publish()
        with pytest.raises((gpushm.StaleGenerationError, gpushm.NoSuchSegmentError)):
            client.get("model")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b'{"segments":[],"tensors":{"a":{}}}',
        b'{"segments":[],"tensors":{"a":[]}}',
        b'{"segments":[1],"tensors":{}}',
        b'{"segments":[],"tensors":{"__metadata__":[]}}',
        b'{"segments":[],"tensors":{"__metadata__":{"gpushm.tree":5}}}',
        b'{"segments":[["s",1]],"tensors":{}}',
        b'{"segments":[],"tensors":{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"segment":1}}}',
        b'{"segments":[],"tensors":{"a":{"dtype":"F32","shape":[999],"data_offsets":[0,4],"segment":0}}}',
        b'{"segments":[],"tensors":{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4],"segment":0}}}',
        b'{"segments":[],"tensors":{"a":{"dtype":5,"shape":[1],"data_offsets":[0,4],"segment":0}}}',
        b'{"segments":[],"tensors":{"a":{"dtype":"F32","shape":"1","data_offsets":[0,4],"segment":0}}}',
    ],
)
def test_a_hostile_shared_structure(client, content):
    segment = client.create("m", 64 + len(content), device="host")
    segment.write(content.ljust(segment.size))
    segment.publish(b'{"format":"gpushm-shared/1"}')
    for framework in (None, "numpy"):
        with pytest.raises(gpushm.ProtocolError):
            client.get("m", framework)
    assert client.stat("m").leases <= 2


def test_memory_for_pytorch(client, start, driver):
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


def test_a_ticket_of_memory(start, driver):
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
