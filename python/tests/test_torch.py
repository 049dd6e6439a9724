# SPDX-License-Identifier: Apache-2.0
"""PyTorch in host memory, and on a real GPU if there is one. Skipped where it is not installed."""

from __future__ import annotations

import fcntl
import gc
import mmap
import os
import queue
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import gpushm
import gpushm._shared
import gpushm.reductions
from gpushm._frameworks import to_torch

import torch_children
from support import has_gpu, wait_until

torch = pytest.importorskip("torch")


GPU = pytest.mark.skipif(not has_gpu(), reason="no GPU")


@pytest.fixture(params=["host", pytest.param("0", marks=GPU)])
def device(request) -> str:
    return str(request.param)


@pytest.fixture
def on(device) -> torch.device:
    return torch.device("cpu" if device == "host" else "cuda:0")


@pytest.fixture(autouse=True)
def default_broker(broker, monkeypatch) -> Iterator[None]:
    monkeypatch.setenv("GPUSHM_SOCKET", broker.socket)
    monkeypatch.setattr(gpushm._shared, "_connection", None)
    monkeypatch.setattr(gpushm.reductions, "_state", None)
    yield
    gpushm.reductions.uninstall()


@pytest.fixture
def add_one() -> Iterator[Callable[..., Any]]:
    """Sends tensors to another process, which adds one to them (torch_children.add_one)."""
    context = torch.multiprocessing.get_context("spawn")
    requests, answers = context.Queue(), context.Queue()
    process = context.Process(target=torch_children.add_one, args=(requests, answers))
    process.start()

    def send(*tensors: torch.Tensor) -> Any:
        requests.put(tensors)
        return answers.get(timeout=60)

    yield send
    requests.put(None)
    process.join(60)
    assert process.exitcode == 0


def synchronize(on: torch.device) -> None:
    if on.type == "cuda":
        torch.cuda.synchronize()


DTYPES = [
    *["bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"],
    *["float16", "bfloat16", "float32", "float64", "complex32", "complex64", "complex128"],
    *["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"],
    *["float4_e2m1fn_x2", "bits8", "bits16", "bits1x8", "bits2x4", "bits4x2"],
    *[f"{kind}{bits}" for kind in ("int", "uint") for bits in range(1, 8)],
    "bcomplex32",
]


def bytes_of(tensor: torch.Tensor) -> list[int]:
    same_size = {1: "uint8", 2: "uint16", 4: "uint32", 8: "uint64", 16: "complex128"}
    integers = tensor.view(getattr(torch, same_size[tensor.element_size()]))
    return integers.cpu().contiguous().view(torch.uint8).tolist()


@pytest.mark.filterwarnings("ignore:ComplexHalf support:UserWarning")
@pytest.mark.parametrize("name", DTYPES)
def test_each_type_of_pytorch_is_put_and_got_unchanged(client, device, on, name):
    dtype = getattr(torch, name, None)
    if dtype is None:
        pytest.skip(f"PyTorch {torch.__version__} has no {name}")
    raw = torch.randint(0, 2, (4, 6 * dtype.itemsize), dtype=torch.uint8)
    tensor = raw.to(on).view(dtype)
    assert tensor.shape == (4, 6)
    source = {"w": tensor, "column": tensor.t(), "row": tensor[2], "tied": tensor}
    client.put("m", source, device=device)
    result = client.get("m", "torch")
    for key, expected in source.items():
        got = result[key]
        assert (got.dtype, got.shape, got.device) == (dtype, expected.shape, on)
        assert bytes_of(got) == bytes_of(expected)
    assert result["tied"] is result["w"]
    # Strides are kept, as far as the format can say them.
    if name != "float4_e2m1fn_x2":
        assert result["column"].stride() == (1, 6)
    with gpushm.safe_open("m", "pt", client=client) as opened:
        every = opened.get_tensors()
        assert list(every) == opened.offset_keys()
        for key, got in every.items():
            one = opened.get_tensor(key)
            assert (got.dtype, got.shape, got.stride()) == (one.dtype, one.shape, one.stride())
            assert (got.data_ptr(), got.device) == (one.data_ptr(), one.device)
        assert opened.get_tensor("w").dtype == dtype
        assert bytes_of(opened.get_slice("w")[1:3]) == bytes_of(tensor[1:3])


def test_a_type_that_pytorch_lacks_is_refused_and_its_memory_released(client, device):
    client.put("m", {"w": torch.zeros(4)}, device=device).close()
    wait_until(lambda: client.stat("m").leases == 0, "no lease")
    with client.open("m") as segment:
        assert client.stat("m").leases == 1
        with pytest.raises(BufferError):
            to_torch(segment.view("float8_e3m4", 4))
    wait_until(lambda: client.stat("m").leases == 0, "no lease")


def test_orders_of_dimensions_and_gaps_are_kept(client, device, on):
    base = torch.arange(60, dtype=torch.float32, device=on).reshape(3, 4, 5)
    tree = {
        "permuted": base.permute(2, 0, 1),
        "channels_last": torch.rand(2, 3, 4, 5, device=on).to(memory_format=torch.channels_last),
        "gaps": base[:, ::2, 1:3],
        "expanded": base[0, 0].expand(7, 5),
        "scalar": base[1, 1, 1],
        "empty": base[:, :0],
        "conjugated": torch.view_as_complex(torch.rand(3, 2, device=on)).conj(),
        "parameter": torch.nn.Parameter(base),
    }
    client.put("m", tree, device=device)
    result = client.get("m", "torch")
    assert list(result) == list(tree)
    for name, expected in tree.items():
        assert torch.equal(result[name], expected.detach()), name
    assert result["permuted"].stride() == (1, 20, 5)
    assert result["channels_last"].is_contiguous(memory_format=torch.channels_last)
    assert result["gaps"].is_contiguous()
    assert not result["parameter"].requires_grad
    with pytest.raises(TypeError, match="no memory that can be shared"):
        client.put("n", {"w": torch.eye(3).to_sparse()}, device=device)
    with pytest.raises(TypeError, match="no memory that can be shared"):
        client.put("n", {"w": torch.empty(3, device="meta")}, device=device)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("name", ["quint8", "qint8", "qint32"])
def test_quantised_tensors_are_put_and_got_unchanged(client, device, on, name):
    dtype = getattr(torch, name)
    source = torch.rand(4, 6) * 10
    tree = {
        "tensor": torch.quantize_per_tensor(source, 0.1, 3, dtype).to(on),
        "channels": torch.quantize_per_channel(
            source, torch.rand(6) + 0.1, torch.arange(6), 1, dtype
        ).to(on),
        "part": torch.quantize_per_tensor(source, 0.1, 3, dtype).to(on)[1:3, ::2],
    }
    client.put("m", tree, device=device)
    result = client.get("m", "torch")
    for key, expected in tree.items():
        got = result[key]
        assert (got.dtype, got.shape, got.device) == (dtype, expected.shape, on)
        assert got.qscheme() == expected.qscheme()
        assert torch.equal(got.int_repr(), expected.int_repr())
        assert torch.equal(got.dequantize(), expected.dequantize())
    # Other frameworks get the bytes.
    assert client.get("m")["tensor"].dtype == "uint8"


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("name", ["quint4x2", "quint2x4"])
def test_quantised_tensors_with_several_elements_in_a_byte_are_kept(client, name):
    dtype, source = getattr(torch, name), torch.rand(3, 8)
    tensor = torch.quantize_per_channel(
        source, torch.rand(3) + 0.1, torch.rand(3), 0, dtype
    ) if name == "quint4x2" else torch.empty_quantized(
        [3, 8], torch.quantize_per_tensor(source, 0.1, 0, torch.quint8)
    )  # fmt: skip
    client.put("m", {"w": tensor}, device="host")
    result = client.get("m", "torch")["w"]
    assert (result.dtype, result.shape) == (tensor.dtype, tensor.shape)
    assert result.untyped_storage().tolist() == tensor.untyped_storage().tolist()


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "float32"},
        {"dtype": 5},
        {"shape": [1000]},
        {"shape": [-1]},
        {"shape": "12"},
        {"strides": [1 << 60, 1]},
        {"offset": 1 << 62},
        {"offset": -1},
        {"scheme": "system"},
        {"scheme": "per_channel_affine"},
        {"scale": "x"},
        {"zero_point": None},
    ],
)
def test_a_hostile_description_of_a_quantised_tensor_is_refused(client, change):
    how = {
        "dtype": "quint8", "shape": [3, 4], "strides": [4, 1], "offset": 0,
        "scheme": "per_tensor_affine", "scale": 0.5, "zero_point": 1,
    }  # fmt: skip
    from gpushm import _torch

    raw = torch.zeros(12, dtype=torch.uint8)
    assert _torch.make_quantised(raw, how).shape == (3, 4)
    with pytest.raises((KeyError, TypeError, ValueError, AttributeError, RuntimeError)):
        _torch.make_quantised(raw, how | change)


def model(on: torch.device | str) -> torch.nn.Module:
    """A transformer, with tied embeddings."""
    torch.manual_seed(18)
    with torch.device(on):
        result = torch.nn.Module()
        result.embed = torch.nn.Embedding(64, 32)
        result.layers = torch.nn.TransformerEncoder(
            torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0),
            2,
            enable_nested_tensor=False,
        )
        result.norm = torch.nn.BatchNorm1d(32)
        result.head = torch.nn.Linear(32, 64, bias=False)
        result.head.weight = result.embed.weight
    return result.eval()


def run(module: torch.nn.Module, on: torch.device) -> torch.Tensor:
    tokens = torch.arange(20, device=on).reshape(2, 10)
    hidden = module.layers(module.embed(tokens))
    return module.head(module.norm(hidden.transpose(1, 2)).transpose(1, 2))


def test_a_loaded_transformer_shares_all_parameters_until_they_are_made_private(client, device, on):
    source = model(on)
    client.put("m", source.state_dict(), device=device)
    with torch.device("meta"):
        engine = model("meta")
    gpushm.load_into("m", engine, client=client)
    mapped = client.get("m", "torch")
    assert engine.embed.weight.data_ptr() == mapped["embed.weight"].data_ptr()
    assert engine.head.weight is engine.embed.weight
    with torch.no_grad():
        assert torch.equal(run(engine, on), run(source, on))
    # What is about to be written becomes private, with its ties; the rest stays shared.
    assert gpushm.make_private(engine, ["head.*", "layers.layers.0.*"]) == 13
    assert engine.head.weight is engine.embed.weight
    shared = engine.layers.layers[1].linear1.weight
    assert shared.data_ptr() == mapped["layers.layers.1.linear1.weight"].data_ptr()
    with torch.no_grad():
        engine.head.weight.add_(1)
        for each in engine.layers.layers[0].parameters():
            each.zero_()
    assert torch.equal(mapped["head.weight"], source.head.weight)
    assert gpushm.make_private(engine) > 0
    assert gpushm.make_private(engine) == 0
    synchronize(on)


@GPU
def test_another_process_loads_a_shared_state_dict_into_its_model(client, start):
    on = torch.device("cuda:0")
    source = model(on)
    torch.cuda.synchronize()
    with client.share("w", source.state_dict()) as shared:
        assert len(shared.segments) >= 1
        child = start(
            """
            import gpushm, os, sys, torch
            sys.path.insert(0, sys.argv[2])
            os.environ['GPUSHM_SOCKET'] = sys.argv[1]
            import test_torch
            engine = test_torch.model('meta')
            gpushm.load_into('w', engine)
            with torch.no_grad():
                result = test_torch.run(engine, torch.device('cuda:0'))
            print(float(result.double().sum()), flush=True)
            """,
            os.path.dirname(__file__),
        )
        with torch.no_grad():
            expected = float(run(source, on).double().sum())
        status, out, err = child.end()
        assert status == 0, err
        assert float(out) == pytest.approx(expected, rel=1e-5)
    with pytest.raises(gpushm.NoSuchSegmentError):
        client.get("w")


@GPU
def test_tensors_of_a_pool_are_segments_and_are_shared_without_a_copy(client, start):
    with gpushm.MemPool("pool", client=client) as pool:
        weights = torch.arange(1 << 20, dtype=torch.float32, device="cuda")
        bias = torch.ones(16, device="cuda")
    torch.cuda.synchronize()
    assert pool.segments >= 1
    names = [each.name for each in client.list("pool/")]
    assert all(name.startswith("pool/") for name in names)
    # Both are segments already, so sharing makes none.
    with client.share("w", {"weights": weights, "bias": bias}) as shared:
        assert shared.segments == []
        child = start("""
            import gpushm, sys, torch
            tree = gpushm.connect(sys.argv[1], cache_bytes=0).get('w', 'torch', access='read-write')
            print(float(tree['weights'].double().sum()), float(tree['bias'].sum()), flush=True)
            tree['bias'].add_(1)
            torch.cuda.synchronize()
            """)
        status, out, err = child.end()
        assert status == 0, err
        assert out == f"{float(weights.double().sum())} 16.0\n"
        assert bias.tolist() == [2.0] * 16
    # A tensor that does not fit: PyTorch's error, with the reason.
    with pytest.raises(torch.cuda.OutOfMemoryError) as caught:
        with gpushm.MemPool("large", client=client):
            torch.empty(1 << 42, dtype=torch.uint8, device="cuda")
    assert isinstance(caught.value.__cause__, gpushm.Error)
    # A graph whose memory is of the pool.
    graph = torch.cuda.CUDAGraph()
    graph_pool = gpushm.MemPool("graph", client=client)
    with torch.cuda.graph(graph, pool=graph_pool.pool.id):
        result = weights * 2
    graph.replay()
    torch.cuda.synchronize()
    assert gpushm._core.find_memory(result.data_ptr(), 4 << 20) is not None
    del weights, bias, result, graph, pool, graph_pool
    gc.collect()
    torch.cuda.empty_cache()
    wait_until(lambda: client.list("pool/") == [], "the segments of the pool end")


def test_torch_multiprocessing_sends_memory_of_segments_by_name(client, device, on, add_one):
    """Through torch.multiprocessing, as code that knows nothing of gpushm does it."""
    gpushm.reductions.install()
    gpushm.reductions.install()
    state = {"w": torch.arange(12, dtype=torch.float32).reshape(3, 4), "h": torch.ones(3, 3).half()}
    client.put("m", state, device=device)
    mapped = client.get("m", "torch", access="read-write")
    kinds, where, sums = add_one(mapped["w"], mapped["w"].t()[1:], torch.nn.Parameter(mapped["h"]))
    assert kinds == ["Tensor", "Tensor", "Parameter"]
    assert where == [str(on)] * 3
    assert sums == [66.0, 63.0, 9.0]  # the second one is a part of the first one
    expected = state["w"] + 1
    expected[:, 1:] += 1
    assert torch.equal(mapped["w"].cpu(), expected)


def test_reductions_leave_tensors_that_are_not_shared_to_pytorch(client, add_one):
    gpushm.reductions.install()
    kinds, where, sums = add_one(
        torch.ones(3), torch.nn.Parameter(torch.ones(2)), torch.eye(2).to_sparse()
    )
    assert (kinds, where) == (["Tensor", "Parameter", "Tensor"], ["cpu"] * 3)
    assert sums == [3.0, 2.0, 2.0]
    assert gpushm.reductions.collect() == 0
    gpushm.reductions.uninstall()
    gpushm.reductions.uninstall()


def test_memory_of_messages_is_given_back(client, broker):
    """Of a memfd, which can be shared without a GPU, too."""
    descriptor = os.memfd_create("test", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.ftruncate(descriptor, 1 << 20)
    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    tensor = torch.frombuffer(mmap.mmap(descriptor, 1 << 20), dtype=torch.float32)
    os.close(descriptor)
    half = tensor[:1000]
    for each in (tensor, half, tensor):
        gpushm.reductions._share(each)
    (name,) = [each.name for each in client.list("torch/")]
    with gpushm.connect(broker.socket, cache_bytes=0) as other:
        opened = other.open(name)
        del tensor
        gc.collect()
        assert gpushm.reductions.collect() == 1  # half is here
        del half, each
        gc.collect()
        assert gpushm.reductions.collect() == 1  # open there
        opened.close()
        wait_until(lambda: gpushm.reductions.collect() == 0, "the memory is given back")
    assert client.list("torch/") == []


@GPU
def test_reductions_keep_memory_of_pytorch_while_a_process_uses_it(client, add_one):
    gpushm.reductions.install()
    tensor = torch.ones(1 << 20, device="cuda")
    leaf = torch.ones(4, device="cuda", requires_grad=True)
    half = tensor[: 1 << 19]
    kinds, where, sums = add_one(tensor, half, leaf)
    assert (kinds, where) == (["Tensor"] * 3, ["cuda:0"] * 3)
    assert sums == [float(1 << 20), float(1 << 20), 4.0]
    torch.cuda.synchronize()
    assert float(tensor.sum()) == (1 << 20) + (1 << 20) + (1 << 19)
    # Kept as long as this process has a tensor of it, or the other one does.
    assert gpushm.reductions.collect() == 2
    address = tensor.data_ptr()
    del tensor, half, leaf
    gc.collect()
    wait_until(lambda: gpushm.reductions.collect() == 0, "the memory is given back", 60)
    assert torch.empty(1 << 20, device="cuda").data_ptr() == address
    assert client.list("torch/") == []


@GPU
def test_memory_of_a_message_that_is_not_read_is_given_back(client, monkeypatch):
    from multiprocessing.reduction import ForkingPickler

    gpushm.reductions.install()
    tensor = torch.ones(1 << 20, device="cuda")
    message = bytes(ForkingPickler.dumps(tensor))
    assert len(message) < 500
    del tensor
    gc.collect()
    assert gpushm.reductions.collect() == 1
    monkeypatch.setattr(gpushm.reductions, "UNCLAIMED_SECONDS", 0.0)
    wait_until(lambda: gpushm.reductions.collect() == 0, "the memory is given back")
    with pytest.raises((gpushm.NoSuchSegmentError, queue.Empty)):
        ForkingPickler.loads(message)
