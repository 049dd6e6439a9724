# SPDX-License-Identifier: Apache-2.0
"""Values as Python has them: devices, arrays, structures, representations, errors, warnings."""

from __future__ import annotations

import collections
import dataclasses
import pickle
import re
import sys
import types

import numpy as np
import pytest

import gpushm

# ---- devices ----


class Other:
    """An object with these attributes, as a framework's device has them."""

    def __init__(self, **members):
        vars(self).update(members)


HOST = ["host", "cpu", "cpu:0", Other(type="cpu", index=None), Other(platform="cpu", id=0)]
NONE = [
    ("", ValueError), ("HOST", gpushm.DeviceNotFoundError), ("cpu:1", gpushm.DeviceNotFoundError),
    ("cuda:", gpushm.DeviceNotFoundError), ("cuda:x", gpushm.DeviceNotFoundError),
    ("tpu:0", gpushm.DeviceNotFoundError), (-1, ValueError), (True, TypeError), (1.0, TypeError),
    (b"0", TypeError), (object(), TypeError), (Other(type="mps", index=0), ValueError),
    (Other(platform="tpu", id=0), ValueError), (Other(type="cuda", index=-1), ValueError),
]  # fmt: skip


@pytest.mark.parametrize("device", HOST, ids=repr)
def test_host_has_the_names_of_frameworks(client, tmp_path, device):
    assert client.create("d/create", 64, device=device).device == "host"
    assert client.put("d/put", {"a": np.ones(2)}, device=device).device == "host"
    assert gpushm.array(2, name="d/array", device=device, client=client).numpy().shape == (2,)
    assert client.open("d/put", device=device).device == "host"
    with client.producer("d/channel", 64, 2, device=device):
        pass
    client.remove("d/put")


@pytest.mark.parametrize(("device", "error"), NONE, ids=repr)
def test_other_devices_are_refused_without_a_driver(client, device, error):
    with pytest.raises(error):
        client.create("x", 64, device=device)
    with pytest.raises(error):
        client.producer("x", 64, 2, device=device)
    with pytest.raises(error):
        client.put("x", {"a": np.ones(2)}, device=device)
    assert client.list() == []


# ---- arrays ----


def test_array_is_created_and_published_in_one_call(client):
    made = gpushm.array((3, 4), "int16", name="a", device="host", client=client)
    assert made.numpy().tolist() == np.zeros((3, 4)).tolist()
    made[1, 1:3] = [5, 6]
    other = client.get("a", "numpy", access="read-write")
    assert other.dtype == np.int16
    assert other[1].tolist() == [0, 5, 6, 0]
    other[0] = 9
    assert made[0].numpy().tolist() == [9] * 4
    assert client.stat("a").lifetime == "leased"
    again = gpushm.array(2, name="a", device="host", client=client, replace=True)
    assert client.get("a", "numpy").shape == (2,)
    assert made.numpy()[0, 0] == 9  # keeps its memory
    del made, other, again
    with pytest.raises(gpushm.NoSuchSegmentError):
        client.stat("a")


def test_array_without_a_name_has_a_new_one(client):
    first = gpushm.array(2, device="host", client=client)
    second = gpushm.array(2, device="host", client=client)
    assert len({each.name for each in client.list("array/")}) == 2
    assert first.dtype == second.dtype == "float32"


@pytest.mark.parametrize("shape", [(0,), (-1,), (2, 0), "ab", 1.5])
def test_array_of_no_elements_is_refused(client, shape):
    with pytest.raises((ValueError, TypeError)):
        gpushm.array(shape, name="a", device="host", client=client)
    with pytest.raises(TypeError):
        gpushm.array(1, ">f4", name="a", device="host", client=client)
    assert client.list() == []


INDICES = [
    0, -1, (1, 2), (slice(None), 1), (..., 0), slice(1, None), slice(None, None, 2), None,
    (None, 1, ..., None), (slice(2, 2),), (1, slice(0, 4, 3)), (), ..., np.int64(2), slice(9, 20),
]  # fmt: skip


@pytest.mark.parametrize("index", INDICES, ids=repr)
def test_index_is_that_of_numpy(client, index):
    array = gpushm.array((3, 4, 5), "int32", device="host", client=client)
    array.numpy()[:] = np.arange(60).reshape(3, 4, 5)
    assert np.array_equal(array[index].numpy(), array.numpy()[index])
    nested = array[:, 1:, ::2]
    assert np.array_equal(nested.numpy(), array.numpy()[:, 1:, ::2])
    assert np.array_equal(nested[..., ::2, :1].numpy(), nested.numpy()[..., ::2, :1])


@pytest.mark.parametrize(
    "index", [3, -4, (0, 0, 0, 0), "a", 1.0, True, slice(None, None, -1), (..., ...)]
)
def test_other_indices_are_refused(client, index):
    array = gpushm.array((3, 4, 5), device="host", client=client)
    with pytest.raises(IndexError):
        array[index]


def test_array_iterates_and_gives_numbers(client):
    array = gpushm.array((2, 2), "float64", device="host", client=client)
    array[:] = [[1, 2], [3, 4]]
    assert [row.numpy().tolist() for row in array] == [[1, 2], [3, 4]]
    assert (array[1, 0].item(), float(array[1, 1]), int(array[0, 1])) == (3.0, 4.0, 2)
    with pytest.raises(ValueError, match="4 elements is not one number"):
        array.item()
    assert array.reshape(4).shape == array.reshape(-1).shape == array.reshape([4]).shape == (4,)
    assert array.reshape(4, 1, -1).shape == (4, 1, 1)
    assert array.jax().tolist() == [[1, 2], [3, 4]]
    for shape in ((3,), (-1, -1), (-1, 3), (2, -2), (0, -1)):
        with pytest.raises(ValueError, match="has no shape"):
            array.reshape(*shape)
    with pytest.raises(ValueError, match="not contiguous"):
        array[:, :1].reshape(2)


def test_write_to_what_is_read_only_is_an_exception(client):
    client.put("p", {"a": np.arange(4)}, device="host")
    array = client.get("p")["a"]
    with pytest.raises(ValueError, match='access="read-write"'):
        array[0] = 1
    assert not array.numpy().flags.writeable


def test_array_of_other_memory_has_the_same_methods():
    array = gpushm.from_dlpack(np.arange(6.0).reshape(2, 3))
    assert array[1, ::2].numpy().tolist() == [3.0, 5.0]
    assert array.reshape(3, 2).tobytes() == np.arange(6.0).tobytes()


# ---- structures ----


@dataclasses.dataclass
class State:
    weights: object
    step: int


Pair = collections.namedtuple("Pair", "mu nu")


def test_put_with_replace_moves_the_name_to_the_new_structure(client):
    first = client.put("m", {"a": np.ones(2)}, device="host", replace=True)
    reader = client.get("m", "numpy")
    with pytest.raises(gpushm.AlreadyExistsError):
        client.put("m", {"a": np.zeros(2)}, device="host")
    second = client.put("m", {"a": np.zeros(3)}, device="host", replace=True)
    assert client.get("m", "numpy")["a"].tolist() == [0, 0, 0]
    assert reader["a"].tolist() == [1, 1]
    assert [each.generation for each in client.list()] == [second.generation]
    assert first.state == "removed"
    with pytest.raises(TypeError, match=r"at a\.1: "):
        client.put("m", {"a": [np.ones(2), object()]}, device="host", replace=True)
    assert client.get("m", "numpy")["a"].shape == (3,)


def test_dataclasses_mappings_and_scalars_are_got_as_they_were_put(client):
    tree = {
        "state": State(np.ones((2, 2), "float32"), np.int64(7)),
        "opt": [Pair(np.zeros(2), np.float32(0.5)), types.MappingProxyType({"x": np.arange(3)})],
        "ordered": collections.OrderedDict(b=1, a=np.bool_(True)),
    }
    client.put("t", tree, device="host")
    got = client.get("t", "numpy")
    assert type(got["state"]).__name__ == "State"
    assert dataclasses.is_dataclass(got["state"])
    assert (got["state"].weights.tolist(), got["state"].step) == ([[1, 1], [1, 1]], 7)
    assert got["opt"][0]._fields == ("mu", "nu")
    assert got["opt"][0].nu == 0.5
    assert got["opt"][1]["x"].tolist() == [0, 1, 2]
    assert list(got["ordered"].items()) == [("b", 1), ("a", True)]
    assert type(client.get("t")["state"]) is type(got["state"])


def test_error_names_the_leaf_of_a_dataclass(client):
    with pytest.raises(TypeError, match=r"^at state\.weights\.0: "):
        client.put("t", {"state": State([object()], 1)}, device="host")
    hidden = dataclasses.make_dataclass("Hidden", ["_x"])
    with pytest.raises(ValueError, match=r"^at s: .*_x"):
        client.put("t", {"s": hidden(np.ones(1))}, device="host")
    assert client.list() == []


def test_nodes_of_jax_are_got_as_dictionaries(client):
    jax = pytest.importorskip("jax")

    @jax.tree_util.register_pytree_with_keys_class
    class Node:
        def __init__(self, x, y):
            self.x, self.y = x, y

        def tree_flatten_with_keys(self):
            key = jax.tree_util.GetAttrKey
            return ((key("x"), self.x), (key("y"), self.y)), None

        @classmethod
        def tree_unflatten(cls, _, children):
            return cls(*children)

    tree = {"n": Node(np.ones(2), Node(np.zeros(1), 3)), "s": State(jax.numpy.ones(2), 1)}
    client.put("j", tree, device="host")
    got = client.get("j", "jax")
    assert got["n"]["x"].tolist() == [1, 1]
    assert got["n"]["y"]["y"] == 3
    doubled = jax.tree.map(lambda each: 2 * each, got)
    assert (doubled["s"].weights.tolist(), doubled["s"].step) == ([2, 2], 2)
    assert len(jax.tree.leaves(got)) == 5


# ---- representations, errors, warnings ----


def test_representations_name_the_object_and_its_state(client, broker):
    socket = broker.socket
    assert repr(client) == f'<gpushm.Client of domain "default" at "{socket}">'
    assert (client.socket, client.domain) == (socket, "default")
    producer = client.producer("camera", 64, 2, device="host")
    consumer = client.consumer("camera")
    assert (repr(producer), repr(consumer)) == (
        '<gpushm.Producer of "camera">',
        '<gpushm.Consumer of "camera">',
    )
    producer.close()
    assert consumer.next() is None
    assert repr(producer) == '<gpushm.Producer of "camera", closed>'
    assert repr(consumer) == '<gpushm.Consumer of "camera", ended>'
    consumer.close()
    assert repr(consumer) == '<gpushm.Consumer of "camera", closed>'
    client.put("p", {"a": np.ones((2, 3), "float16")}, device="host")
    with gpushm.safe_open("p", client=client) as opened:
        text = repr(opened.get_slice("a"))
    assert text.startswith('<gpushm.TensorSlice of "a" F16 [2, 3] of <gpushm.Segment "p"')
    with gpushm.connect(socket) as other:
        pass
    assert repr(other) == f'<gpushm.Client of domain "default" at "{socket}", closed>'


def test_a_missing_file_is_a_file_not_found_error(client, tmp_path):
    missing = str(tmp_path / "none.safetensors")
    with pytest.raises(FileNotFoundError) as caught:
        gpushm.load_safetensors(missing, "x", client=client)
    error = caught.value
    assert isinstance(error, gpushm.SystemCallError)
    assert (error.errno, error.filename) == (2, missing)
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), copy.errno, str(copy)) == (type(error), 2, str(error))
    with pytest.raises(NotADirectoryError):
        gpushm.write_ticket_file("/dev/null/x", b"")


def test_star_import_replaces_no_builtin():
    import builtins

    assert not set(gpushm.__all__) & set(vars(builtins))


def test_warnings_need_no_call(start):
    child = start(
        """
import sys, gpushm
client = gpushm.connect(sys.argv[1])
client.create("q", 4096)
"""
    )
    status, _, err = child.end()
    assert status == 0
    assert re.fullmatch(r"device auto: .*, using host memory\n", err), err


def test_warnings_are_those_of_the_logger(start):
    child = start(
        """
import logging, sys, gpushm
logging.basicConfig(format="%(name)s %(levelname)s", stream=sys.stdout)
client = gpushm.connect(sys.argv[1])
client.create("q", 4096)
logging.getLogger("gpushm").setLevel(logging.ERROR)
client.create("r", 4096)
"""
    )
    lines = set(child.succeed().splitlines())
    assert lines <= {"gpushm WARNING"}


def test_progress_is_shown_in_a_notebook(client, tmp_path, monkeypatch, capsys):
    safetensors = pytest.importorskip("safetensors.numpy")
    safetensors.save_file({"a": np.ones(1000)}, tmp_path / "m.safetensors")
    bars = []

    class Bar:
        """As tqdm's."""

        def __init__(self, total, initial, desc, **_):
            self.total, self.n, self.desc, self.is_closed = total, initial, desc, False
            bars.append(self)

        def update(self, count):
            self.n += count

        def close(self):
            self.is_closed = True

    def load(name):
        options = {"device": "host", "progress": True, "client": client}
        gpushm.load_safetensors(tmp_path / "m.safetensors", name, **options).close()

    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    monkeypatch.setitem(sys.modules, "tqdm.auto", types.SimpleNamespace(tqdm=Bar))
    load("bar")
    assert [(bar.n, bar.desc, bar.is_closed) for bar in bars] == [(bars[0].total, "bar", True)]
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    load("line")
    assert "line: 0.0 of 0.0 GB" in capsys.readouterr().err
    monkeypatch.delitem(sys.modules, "ipykernel")
    load("mute")
    assert capsys.readouterr().err == ""
