# SPDX-License-Identifier: Apache-2.0
"""Arrays that are pickled by the name of their segment, and modules over shared tensors."""

from __future__ import annotations

import copy
import fcntl
import json
import mmap
import multiprocessing
import os
import pickle
import sys
import threading
import types
from collections.abc import Iterator

import numpy as np
import pytest

import gpushm
import gpushm._core
import gpushm._shared
from gpushm import reductions

from support import Broker, Held, increment, wait_until


@pytest.fixture(autouse=True)
def default_broker(broker, monkeypatch) -> Iterator[None]:
    monkeypatch.setenv("GPUSHM_SOCKET", broker.socket)
    monkeypatch.setattr(gpushm._shared, "_connection", None)
    yield
    if gpushm._shared._connection is not None:
        gpushm._shared._connection[1].close()


def test_multiprocessing_passes_arrays_by_name(client):
    segment = client.create("m", 4096, device="host")
    array = segment.view("int32", (4, 6), offset=256)
    np.from_dlpack(array)[:] = 1
    part = gpushm.SharedTensor(segment.view("int32", (4, 2), offset=260, strides=(6, 3)), "numpy")
    segment.publish()
    reader = client.open("m")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        whole = gpushm.SharedTensor(array, "numpy")
        assert pool.apply(increment, (whole,)) == (24, True, "int32")
        assert whole.tensor[0, 0] == 2
        assert pool.apply(increment, (part,)) == (8, True, "int32")
        assert whole.tensor[0, 1] == 2
        # What is mapped for reading only is so there, too.
        shared = gpushm.SharedTensor(reader.view("int32", (4, 6), offset=256), "numpy")
        assert pool.apply(increment, (shared,)) == (26, False, "int32")


def test_a_pickle_is_small_and_has_no_handle(client):
    client.put("m", {"w": np.arange(100_000)}, device="host")
    shared = gpushm.SharedTensor(client.get("m")["w"], "numpy")
    text = pickle.dumps(shared)
    assert len(text) < 300
    assert b"m" in text
    again = pickle.loads(text)
    assert again.array.readonly
    assert again.framework == "numpy"
    assert again.tensor[-1] == 99_999
    assert "SharedTensor of <gpushm.Array shape=(100000,)" in repr(again)
    held = Held()
    for _ in range(20):
        del again
        again = pickle.loads(text)
    assert held == Held()
    assert copy.copy(again.array).shape == (100_000,)
    client.remove("m")
    with pytest.raises(gpushm.NoSuchSegmentError):
        pickle.loads(text)
    client.put("m", {"w": np.arange(100_000)}, device="host")
    with pytest.raises(gpushm.StaleGenerationError, match="another segment by now"):
        pickle.loads(text)


def test_arrays_that_others_cannot_open_are_not_pickled(client):
    with pytest.raises(TypeError, match="not of a segment"):
        pickle.dumps(gpushm.from_dlpack(np.ones(3)))
    segment = client.create("m", 64, device="host")
    segment.publish()
    timeline = client.create_timeline("t")
    late = segment.view("uint8", 4, ready=(timeline, 1))
    with pytest.raises(BufferError, match="not ready"):
        pickle.dumps(late)
    timeline.signal(1)
    assert pickle.loads(pickle.dumps(late)).shape == (4,)
    with pytest.raises(ValueError, match="framework is"):
        gpushm.SharedTensor(late, "none")


def test_a_shared_tensor_of_what_other_processes_cannot_open_is_refused(client):
    for wrong, text in [
        (np.zeros(4), "ndarray is not a gpushm.Array"),
        (None, "NoneType is not a gpushm.Array"),
        (gpushm.from_dlpack(np.zeros(4)), "not of a segment"),
    ]:
        with pytest.raises(TypeError, match=text):
            gpushm.SharedTensor(wrong, "numpy")


def test_an_array_that_is_not_published_is_refused_where_it_is_pickled(client):
    segment = client.create("m", 64, device="host")
    shared = gpushm.SharedTensor(segment.view("uint8", 4), "numpy")
    for value in (shared, shared.array):
        with pytest.raises(gpushm.InvalidArgumentError, match="is not published"):
            pickle.dumps(value)
    segment.publish()
    assert pickle.loads(pickle.dumps(shared)).tensor.tolist() == [0, 0, 0, 0]
    table = json.dumps({"w": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}})
    segment = client.create("t", gpushm.tensors_size(table), device="host")
    with pytest.raises(gpushm.InvalidArgumentError, match="is not published"):
        pickle.dumps(segment.view("uint8", 4))
    segment.publish_tensors(table)
    pickle.dumps(segment.view("uint8", 4))


def test_an_array_of_another_broker_is_refused_with_the_next_step(broker, client, monkeypatch):
    client.put("m", {"w": np.arange(4)}, device="host")
    text = pickle.dumps(gpushm.SharedTensor(client.get("m")["w"], "numpy"))
    epoch = client.broker().epoch.hex()
    other = Broker()
    try:
        monkeypatch.setenv("GPUSHM_SOCKET", other.socket)
        said = f"of another broker .epoch {epoch}. than {other.socket} .*set GPUSHM_SOCKET"
        with pytest.raises(gpushm.NoSuchSegmentError, match=said):
            pickle.loads(text)
        with gpushm.connect(other.socket) as there:
            there.put("m", {"w": np.zeros(4)}, device="host")
            with pytest.raises(gpushm.StaleGenerationError, match=said):
                pickle.loads(text)
    finally:
        other.stop()


def test_threads_have_one_connection(client, monkeypatch):
    client.put("m", {"w": np.arange(4)}, device="host")
    text = pickle.dumps(client.get("m")["w"])
    made = []
    start = threading.Barrier(8)

    def connect():
        made.append(gpushm.connect())
        return made[-1]

    def load() -> None:
        start.wait(60)
        pickle.loads(text)

    monkeypatch.setattr(gpushm._shared, "_connect_new", connect)
    threads = [threading.Thread(target=load) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(made) == 1


# ---- memory that is a part of other memory ----


def shareable(size: int) -> np.ndarray:
    """A memfd that cannot shrink."""
    file = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(file, size)
    fcntl.fcntl(
        file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    )
    return np.frombuffer(mmap.mmap(file, size), np.uint8)  # its descriptor stays open


def test_memory_is_found_behind_its_parts(client):
    page = mmap.PAGESIZE
    whole = shareable(16 * page)
    ranges = {"whole": (0, 16), "a": (1, 3), "b": (2, 6), "c": (2, 3), "d": (8, 9)}
    segments = {
        name: client.share(name, whole[begin * page : end * page])
        for name, (begin, end) in ranges.items()
    }

    for gone in [None, "whole", "b", "a", "c", "d"]:
        if gone is not None:
            segments.pop(gone).close()
            ranges.pop(gone)
        for begin in range(16):
            for end in range(begin + 1, 17):
                address = whole.ctypes.data + begin * page
                found = gpushm._core.find_memory(address, (end - begin) * page)
                name = None if found is None else gpushm._shared.place_of(found).name
                del found  # it keeps the segment open
                fitting = {
                    each for each, (first, last) in ranges.items() if first <= begin and end <= last
                }
                assert name in (fitting or {None}), (gone, begin, end)


# ---- what was sent by gpushm.reductions: PyTorch is not needed to give it back ----


def test_sent_memory_is_kept_for_its_receiver(client, broker, monkeypatch):
    """Also if events were lost; and a name that somebody has removed stops nothing."""
    torch = types.ModuleType("torch")
    torch._C = types.SimpleNamespace(_storage_Use_Count=lambda key: 0)
    monkeypatch.setitem(sys.modules, "torch", torch)
    kinds = []

    def dispatch() -> list[types.SimpleNamespace]:
        return [types.SimpleNamespace(kind=kind, name=name) for kind, name in kinds]

    state = reductions._State(client)
    state.events = types.SimpleNamespace(dispatch=dispatch)
    for name in ("a", "b"):
        state.sent[len(state.sent)] = reductions._Sent(client.share(name, shareable(4096)), 0)
    kinds = [("resync", "")]
    assert reductions._collect(state) == 2
    assert [each.name for each in client.list()] == ["a", "b"]
    client.remove("a")
    kinds = [("opened", "a")]
    assert reductions._collect(state) == 1
    kinds = [("opened", "b")]
    with gpushm.connect(broker.socket, cache_bytes=0) as other, other.open("b"):
        assert reductions._collect(state) == 1
    wait_until(lambda: client.stat("b").leases == 1, "the receiver has closed it")
    assert reductions._collect(state) == 0
    assert client.list() == []


# ---- modules: PyTorch is not needed for what the function itself does ----


class Tensor:
    def __init__(self, array: np.ndarray) -> None:
        self.array, self.shape, self.dtype = array, array.shape, array.dtype

    def clone(self) -> Tensor:
        return Tensor(self.array.copy())


class Parameter(Tensor):
    def __init__(self, data: Tensor, requires_grad: bool = True) -> None:
        super().__init__(data.array)
        self.requires_grad = requires_grad


class Module:
    def __init__(self) -> None:
        self._parameters: dict[str, Parameter] = {}
        self._buffers: dict[str, Tensor] = {}
        self.children: dict[str, Module] = {}

    def get_submodule(self, path: str) -> Module:
        result = self
        for each in filter(None, path.split(".")):
            result = result.children[each]
        return result

    def state_dict(self, prefix: str = "", *, keep_vars: bool) -> dict[str, object]:
        assert keep_vars
        result = {prefix + key: each for key, each in (self._parameters | self._buffers).items()}
        for name, child in self.children.items():
            result |= child.state_dict(f"{prefix}{name}.", keep_vars=True)
        return result


@pytest.fixture
def module(monkeypatch) -> Module:
    torch = types.ModuleType("torch")
    torch.Tensor = Tensor
    torch.nn = types.SimpleNamespace(Parameter=Parameter)
    torch.from_dlpack = lambda array: Tensor(np.from_dlpack(array))
    monkeypatch.setitem(sys.modules, "torch", torch)
    result, child = Module(), Module()
    tied = Parameter(Tensor(np.zeros((4, 2), "float32")))
    result._parameters = {"embed": tied, "head": tied}
    child._parameters = {
        name: Parameter(Tensor(np.zeros(3, "float16"))) for name in ("weight", "scale")
    }
    child._buffers = {"mean": Tensor(np.zeros(2))}
    result.children = {"layer": child}
    return result


def weights() -> dict[str, np.ndarray]:
    return {
        "embed": np.ones((4, 2), "float32"),
        "layer.weight": np.full(3, 2, "float16"),
        "layer.scale": np.full(3, 3, "float16"),
        "layer.mean": np.full(2, 4.0),
    }


def test_load_into_maps_parameters_and_copies_mutable_ones(client, module):
    client.put("m", weights(), device="host")
    gpushm.load_into("m", module, mutable=["*.scale"], client=client)
    mapped = client.get("m", "numpy")
    embed, child = module._parameters["embed"], module.children["layer"]
    assert module._parameters["head"] is embed
    assert not embed.requires_grad
    assert not embed.array.flags.writeable
    assert (embed.array == mapped["embed"]).all()
    assert not child._parameters["weight"].array.flags.writeable
    # Private copies.
    for each, expected in [(child._parameters["scale"], 3), (child._buffers["mean"], 4)]:
        assert each.array.flags.writeable
        assert (each.array == expected).all()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"embed": None}, "embed is missing; head is missing"),
        ({"more": np.ones(1)}, "more is not of the module"),
        ({"embed": np.ones((4, 3), "float32")}, r"embed has float32 \(4, 3\), and the module"),
        ({"layer.weight": np.ones(3, "float32")}, "layer.weight has float32"),
        ({str(i): np.ones(1) for i in range(7)}, "and 2 more"),
    ],
)
def test_a_module_that_does_not_fit_is_unchanged(client, module, changes, text):
    before = module.state_dict(keep_vars=True)
    tensors = {key: each for key, each in (weights() | changes).items() if each is not None}
    client.put("m", tensors, device="host")
    with pytest.raises(ValueError, match=text):
        gpushm.load_into("m", module, client=client)
    assert module.state_dict(keep_vars=True) == before


def test_load_into_without_strict_keeps_what_the_model_lacks(client, module):
    client.put("m", {"layer.weight": np.full(3, 2, "float16"), "x": np.ones(1)}, device="host")
    before = module._parameters["embed"]
    gpushm.load_into("m", module, strict=False, client=client)
    assert module._parameters["embed"] is before
    assert (module.children["layer"]._parameters["weight"].array == 2).all()


def test_load_into_a_module_of_pytorch_gives_equal_results(client):
    torch = pytest.importorskip("torch")
    with torch.device("meta"):
        module = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    source = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    state = {key: each.detach() for key, each in source.state_dict().items()}
    client.put("m", state, device="host")
    gpushm.load_into("m", module, client=client)
    shown = torch.ones(2, 4)
    assert torch.equal(module.eval()(shown), source.eval()(shown))
