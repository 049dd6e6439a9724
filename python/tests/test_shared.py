# SPDX-License-Identifier: Apache-2.0
"""Arrays that are pickled by the name of their segment, and modules over shared tensors."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
import sys
import types
from collections.abc import Iterator

import numpy as np
import pytest

import gpushm
import gpushm._shared

from support import Held, increment


@pytest.fixture(autouse=True)
def default_broker(broker, monkeypatch) -> Iterator[None]:
    monkeypatch.setenv("GPUSHM_SOCKET", broker.socket)
    monkeypatch.setattr(gpushm._shared, "_connection", None)
    yield
    if gpushm._shared._connection is not None:
        gpushm._shared._connection[1].close()


def test_multiprocessing(client):
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


def test_what_cannot_be_pickled(client):
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


def test_load_into(client, module):
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


def test_load_into_what_is_there(client, module):
    client.put("m", {"layer.weight": np.full(3, 2, "float16"), "x": np.ones(1)}, device="host")
    before = module._parameters["embed"]
    gpushm.load_into("m", module, strict=False, client=client)
    assert module._parameters["embed"] is before
    assert (module.children["layer"]._parameters["weight"].array == 2).all()


def test_load_into_a_module_of_pytorch(client):
    torch = pytest.importorskip("torch")
    with torch.device("meta"):
        module = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    source = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    state = {key: each.detach() for key, each in source.state_dict().items()}
    client.put("m", state, device="host")
    gpushm.load_into("m", module, client=client)
    shown = torch.ones(2, 4)
    assert torch.equal(module.eval()(shown), source.eval()(shown))
