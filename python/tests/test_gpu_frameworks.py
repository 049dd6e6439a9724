# SPDX-License-Identifier: Apache-2.0
"""PyTorch, CuPy, Numba and JAX on a real GPU, in both directions."""

from __future__ import annotations

import time

import numpy as np
import pytest

import gpushm
from gpushm._frameworks import to_torch

from support import has_gpu

MIB = 1 << 20


pytestmark = pytest.mark.skipif(not has_gpu(), reason="no GPU")


@pytest.fixture
def segment(client):
    with client.create("s", 16 * MIB, device="0") as result:
        result.fill(0)
        yield result


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


READER = """
    import gpushm, numpy, sys
    segment = gpushm.connect(sys.argv[1]).open(sys.argv[2])
    print(numpy.frombuffer(segment.read(0, 4 * int(sys.argv[3])), 'float32').tolist(), flush=True)
    """


def test_pytorch_uses_a_segment_of_a_gpu_in_place(client, segment, start, torch):
    tensor = torch.from_dlpack(segment.view("float32", (4, 4)))
    assert tensor.device == torch.device("cuda", 0)
    assert tensor.data_ptr() == segment.view().data_ptr
    tensor.copy_(torch.arange(16, dtype=torch.float32).reshape(4, 4))
    torch.cuda.synchronize()
    segment.publish()
    assert start(READER, "s", "16").succeed() == f"{[float(i) for i in range(16)]}\n"
    back = gpushm.from_dlpack(tensor.t())
    assert (back.__dlpack_device__(), back.strides) == ((2, 0), (1, 4))
    for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "bool", "int64", "complex64"):
        assert torch.from_dlpack(segment.view(name, 8)).dtype == getattr(torch, name)
        assert gpushm.from_dlpack(torch.zeros(8, dtype=getattr(torch, name))).dtype == name
    assert segment.view(torch.bfloat16, 8).dtype == "bfloat16"


def test_pytorch_reads_what_is_mapped_for_reading(client, segment, torch):
    segment.view("float32", 1024).copy_from(np.ones(1024, "float32"))
    segment.publish()
    weights = torch.from_dlpack(client.open("s").view("float32", (32, 32)))
    assert float((weights @ weights).sum()) == 32 * 32 * 32


def test_a_graph_of_pytorch_waits_and_signals_at_each_launch(client, segment, torch):
    requests, answers = client.create_timeline("requests"), client.create_timeline("answers")
    asked, answered = client.open_timeline("requests"), client.open_timeline("answers")
    tensor = torch.from_dlpack(segment.view("float32", 1024))
    stream = torch.cuda.Stream()
    asked.prepare(stream)
    answers.prepare(stream)
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        before = gpushm.StreamBatch().wait(asked, 1).record(stream)
        tensor += 1
        after = gpushm.StreamBatch().signal(answers, 1).record(stream)
    graph.instantiate()
    with torch.cuda.stream(stream):
        for n in range(1, 4):
            before.set_values(graph, stream, [n])
            after.set_values(graph, stream, [n])
            graph.replay()
            assert answered.value == n - 1
            requests.signal(n)
            answered.wait(n, 20)
            assert float(tensor[0]) == n
    asked.check()


@pytest.mark.parametrize("by_table", [False, True])
def test_the_stream_of_pytorch_waits_and_the_host_does_not(client, segment, torch, by_table):
    timeline = client.create_timeline("t")
    produce, consume = torch.cuda.Stream(), torch.cuda.Stream()
    array = segment.view("float32", 1024, ready=(timeline, 1))
    # The first launch of a kernel loads it, and the first tensor of a stream allocates memory: both
    # wait for all streams.
    for stream in (produce, consume):
        with torch.cuda.stream(stream):
            float(torch.from_dlpack(segment.view("float32", 1024)).fill_(1).sum())
    started = time.monotonic()
    with torch.cuda.stream(consume):
        tensor = to_torch(array) if by_table else torch.from_dlpack(array)
        total = tensor.sum()
    assert time.monotonic() - started < 5
    time.sleep(0.1)
    assert not consume.query()
    with torch.cuda.stream(produce):
        torch.from_dlpack(segment.view("float32", 1024)).fill_(2)
        timeline.signal(1, stream=produce)
    consume.synchronize()
    timeline.check()
    assert float(total) == 2048


def test_a_tensor_of_pytorch_is_shared_until_unshare(client, start, torch):
    tensor = torch.arange(32, dtype=torch.float32, device="cuda")
    torch.cuda.synchronize()
    with client.share("tensor", tensor[4:20]) as shared:
        assert shared.size == 64
        assert start(READER, "tensor", "16").succeed() == f"{[float(i) for i in range(4, 20)]}\n"
        shared.unshare()
    with pytest.raises(gpushm.NoSuchSegmentError):
        client.open("tensor")


def test_tensors_of_pytorch_are_put_and_got_on_a_gpu(client, torch):
    state = {"w": torch.ones(8, 8, dtype=torch.bfloat16), "b": torch.arange(8)}
    client.put("m", state, device="0")
    result = client.get("m", "torch")
    assert result["w"].device == torch.device("cuda", 0)
    assert result["w"].dtype == torch.bfloat16
    assert float(result["w"].sum()) == 64
    assert result["b"].tolist() == list(range(8))


def test_a_model_is_opened_as_tensors_of_pytorch_on_a_gpu(client, tmp_path, torch):
    safetensors = pytest.importorskip("safetensors.torch")
    with torch.device("cuda"):
        source = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.BatchNorm1d(32)).eval()
    path = tmp_path / "model.safetensors"
    safetensors.save_file(source.state_dict(), path)
    gpushm.load_safetensors(path, "m", device="0", client=client).close()
    with gpushm.safe_open("m", "pt", device="cuda:0", client=client) as opened:
        for name, expected in source.state_dict().items():
            tensor = opened.get_tensor(name)
            assert tensor.device == torch.device("cuda", 0)
            assert torch.equal(tensor, expected)
        weight = opened.get_tensor("0.weight")
        part = opened.get_slice("0.weight")[4:8, ::2]
        assert part.data_ptr() == weight[4:].data_ptr()
        assert torch.equal(part, weight[4:8, ::2])
    with torch.device("meta"):
        module = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.BatchNorm1d(32)).eval()
    gpushm.load_into("m", module, client=client)
    assert module[0].weight.data_ptr() == weight.data_ptr()
    shown = torch.ones(4, 64, device="cuda")
    assert torch.equal(module(shown), source(shown))
    # Buffers are private: a step of training writes to them.
    module.train()(shown)
    torch.cuda.synchronize()
    client.remove("m")


def test_cupy_uses_a_segment_of_a_gpu_in_place(segment):
    cupy = pytest.importorskip("cupy")
    for make in (cupy.from_dlpack, cupy.asarray):
        array = make(segment.view("float32", (4, 8)))
        assert array.data.ptr == segment.view().data_ptr
        array += 1
    cupy.cuda.runtime.deviceSynchronize()
    assert segment.view("float32", 32).tobytes() == np.full(32, 2, "float32").tobytes()
    back = gpushm.from_dlpack(cupy.arange(6, dtype="int32").reshape(2, 3))
    assert (back.shape, back.dtype, back.__dlpack_device__()) == ((2, 3), "int32", (2, 0))


def test_cupy_waits_for_the_timeline(client, segment):
    cupy = pytest.importorskip("cupy")
    timeline = client.create_timeline("t")
    array = segment.view("float32", 8, ready=(timeline, 1))
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        result = cupy.from_dlpack(array) + 1
    time.sleep(0.05)
    assert not stream.done
    timeline.signal(1)
    stream.synchronize()
    assert result.tolist() == [1.0] * 8


def test_numba_uses_a_segment_of_a_gpu_in_place(segment):
    cuda = pytest.importorskip("numba.cuda")
    array = cuda.as_cuda_array(segment.view("float32", (4, 8)))
    array.copy_to_device(np.full((4, 8), 3, "float32"))
    cuda.synchronize()
    assert segment.read(0, 4) == np.float32(3).tobytes()
    assert array.device_ctypes_pointer.value == segment.view().data_ptr


def test_jax_uses_a_segment_of_a_gpu_in_place(segment, start):
    pytest.importorskip("jax")
    segment.view("float32", 64).copy_from(np.full(64, 2, "float32"))
    segment.publish()
    child = start("""
        import os
        os.environ.pop('JAX_PLATFORMS', None)
        os.environ['XLA_PYTHON_CLIENT_PREALLOCATE'] = 'false'
        import gpushm, jax, sys
        array = gpushm.connect(sys.argv[1]).open('s').view('float32', (8, 8))
        weights = jax.dlpack.from_dlpack(array.unflagged())
        print(weights.device.platform, weights.unsafe_buffer_pointer() == array.data_ptr, flush=True)
        print(float((weights @ weights).sum()), flush=True)
        back = gpushm.from_dlpack(jax.numpy.arange(6))
        print(back.__dlpack_device__(), flush=True)
        """)
    status, out, err = child.end()
    assert status == 0, err
    assert out == "gpu True\n2048.0\n(2, 0)\n"


# ---- live updates ----


@pytest.fixture
def publish(client):
    publisher = gpushm.WeightPublisher("w/policy", device="0", client=client)
    return publisher.update


def test_an_update_is_ordered_on_the_stream_of_the_steps(client, publish, torch):
    """Steps that are enqueued before an update see the former weights, later ones the new ones."""
    weights, stream = torch.zeros(MIB, device="cuda"), torch.cuda.Stream()
    subscriber = gpushm.WeightSubscriber("w/policy", client=client)
    publish({"w": torch.ones(MIB, device="cuda")})
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        before = weights.sum()
    assert subscriber.apply({"w": weights}, stream=stream) == 1
    with torch.cuda.stream(stream):
        after = weights.sum()
    assert not stream.query()  # nothing has waited for the GPU
    stream.synchronize()
    assert (before.item(), after.item()) == (0, MIB)
    subscriber.close()


def test_an_update_is_published_after_the_work_of_its_stream(client, publish, torch):
    stream = torch.cuda.Stream()
    weights = torch.zeros(MIB, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        weights.fill_(3)
    publish({"w": weights}, stream=stream)
    assert (client.get("w/policy@latest", "torch")["w"] == 3).all()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        weights.fill_(4)
        publish({"w": weights})  # the current stream
    assert (client.get("w/policy@latest", "torch")["w"] == 4).all()


@pytest.mark.parametrize("mode", ["copy", "remap"])
def test_captured_graphs_see_updates(client, publish, torch, mode):
    engine = torch.nn.Linear(256, 256, bias=False, device="cuda")
    x = torch.ones(8, 256, device="cuda")
    subscriber = gpushm.WeightSubscriber("w/policy", mode=mode, client=client)
    publish({"weight": torch.full((256, 256), 1.0, device="cuda")})
    assert subscriber.apply(engine) == 1
    address = engine.weight.data_ptr()
    with torch.no_grad():
        engine(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = engine(x)
    for value in range(1, 20):
        publish({"weight": torch.full((256, 256), float(value), device="cuda")})
        assert subscriber.apply(engine) == value + 1
        graph.replay()
        torch.cuda.synchronize()
        assert (y == 256 * value).all()
    assert engine.weight.data_ptr() == address
    subscriber.close()


def test_a_swap_keeps_what_running_steps_read(client, publish, torch):
    engine = {"w": torch.zeros(MIB, device="cuda")}
    subscriber = gpushm.WeightSubscriber("w/policy", mode="swap", client=client)
    stream = torch.cuda.Stream()
    sums = []
    for value in range(1, 10):
        publish({"w": torch.full((MIB,), float(value), device="cuda")})
        assert subscriber.apply(engine, stream=stream) == value
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)
            sums.append(engine["w"].sum())
    stream.synchronize()
    assert [each.item() for each in sums] == [float(value * MIB) for value in range(1, 10)]
    subscriber.close()


def test_shards_on_a_gpu(client, publish, torch):
    whole = torch.arange(64 * 48, dtype=torch.float32, device="cuda").reshape(64, 48)
    publish({"w": whole, "b": torch.ones(3, device="cuda", dtype=torch.bfloat16)})
    part = torch.zeros(64, 24, device="cuda")
    target = {
        "w": gpushm.Shard(part, (64, 48), (0, 24)),
        "b": torch.zeros(3, device="cuda").bfloat16(),
    }
    gpushm.WeightSubscriber("w/policy", client=client).apply(target)
    torch.cuda.synchronize()
    assert torch.equal(part, whole[:, 24:])
    assert (target["b"] == 1).all()
