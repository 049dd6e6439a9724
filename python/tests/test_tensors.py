# SPDX-License-Identifier: Apache-2.0
"""Models that are loaded once, and their tensors by name; safetensors' own package is the oracle."""

from __future__ import annotations

import fnmatch
import gc
import itertools
import json
import os
import random
import signal
import struct
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy

import gpushm

from support import Held, wait_until

rng = np.random.default_rng(18)

# What safetensors' package reads for NumPy; with bfloat16 and others in `ORACLES`.
NUMPY = [
    *["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"],
    *["float16", "float32", "float64", "complex64"],
]


def tensor(dtype: str, *shape: int) -> np.ndarray:
    kind = np.dtype(getattr(ml_dtypes, dtype, None) or dtype)
    count = int(np.prod(shape)) * kind.itemsize
    raw = rng.integers(0, 2 if dtype == "bool" else 255, count, dtype="uint8")
    return raw.view(kind).reshape(shape)


def write(path: Path, header: bytes | dict[str, Any], data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    tensors = {f"layer.{name}": tensor(name, 3, 4) for name in NUMPY}
    tensors |= {"scalar": np.array(2.5), "empty": np.zeros((0, 7), "int16"), "a": tensor("int8", 5)}
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file(tensors, path, metadata={"format": "np", "ü": 'x"\n'})
    return path


def names(client: gpushm.Client) -> list[str]:
    """Without what holds a process's timelines."""
    return [each.name for each in client.list() if not each.name.startswith("~signals")]


def same(left: np.ndarray, right: np.ndarray) -> bool:
    return (
        left.dtype == right.dtype
        and left.shape == right.shape
        and left.tobytes() == right.tobytes()
    )


def test_safe_open_returns_the_same_as_safetensors(client, model):
    with client.load_tensors(model, "m", device="host") as segment:
        assert (segment.access, segment.lifetime) == ("read", "persistent")
    with safetensors.safe_open(model, "numpy") as theirs:
        with gpushm.safe_open("m", "numpy", client=client) as ours:
            assert ours.keys() == theirs.keys()
            assert ours.offset_keys() == theirs.offset_keys()
            assert ours.metadata() == theirs.metadata()
            for name in ours.keys():  # noqa: SIM118
                assert same(ours.get_tensor(name), theirs.get_tensor(name)), name
                one, other = ours.get_slice(name), theirs.get_slice(name)
                assert one.get_shape() == other.get_shape()
                assert one.get_dtype() == other.get_dtype()
                if 0 not in one.get_shape():  # the reference refuses it
                    assert same(one[...], other[...])
                assert ours.get_tensor(name).ctypes.data % 256 == 0
                assert not ours.get_tensor(name).flags.writeable
            everything, expected = ours.get_tensors(), theirs.get_tensors()
            assert list(everything) == list(expected)
            assert all(same(everything[name], expected[name]) for name in expected)


def test_tensors_of_types_that_numpy_lacks_have_the_bytes_of_the_file(client, tmp_path):
    kinds = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"]
    tensors = {name: tensor(name, 4, 6) for name in kinds}
    path = tmp_path / "m.safetensors"
    table_names = dict(zip(kinds, ["BF16", "F8_E4M3", "F8_E5M2", "F8_E8M0"], strict=True))
    header: dict[str, Any] = {}
    data = b""
    for name, each in tensors.items():
        place = [len(data), len(data) + each.nbytes]
        header[name] = {"dtype": table_names[name], "shape": [4, 6], "data_offsets": place}
        data += each.tobytes()
    write(path, header, data)
    client.load_tensors(path, "m", device="host")
    theirs = dict(safetensors.deserialize(path.read_bytes()))
    with gpushm.safe_open("m", "np", client=client) as ours:
        assert set(ours.keys()) == set(theirs)
        for name, each in tensors.items():
            assert same(ours.get_tensor(name), each)
            assert ours.get_slice(name).get_dtype() == theirs[name]["dtype"]
            assert bytes(theirs[name]["data"]) == ours.get_tensor(name).tobytes()
            assert same(ours.get_slice(name)[1:3, 2], each[1:3, 2])


def test_types_that_no_framework_has_are_refused(client, tmp_path):
    header = {
        "six": {"dtype": "F6_E3M2", "shape": [4], "data_offsets": [0, 3]},
        "four": {"dtype": "F4", "shape": [2, 4], "data_offsets": [3, 7]},
        "odd": {"dtype": "F4", "shape": [2, 1], "data_offsets": [7, 8]},
    }
    path = write(tmp_path / "m.safetensors", header, bytes(range(8)))
    client.load_tensors(path, "m", device="host")
    opened = gpushm.safe_open("m", client=client)
    for name in ("six", "odd"):
        with pytest.raises(TypeError, match="no framework has tensors of"):
            opened.get_tensor(name)
    assert opened.get_tensor("four").shape == (2, 2)
    assert opened.get_tensor("four").tobytes() == bytes([3, 4, 5, 6])
    assert opened.get_slice("four").get_shape() == [2, 4]


# ---- some tensors, and slices of them ----


def random_slices(shape: tuple[int, ...], picks: random.Random) -> list[tuple[int, ...]]:
    """Of some dimensions."""
    result: list[tuple[int, ...]] = []
    for dim, size in enumerate(shape):
        given = dim - len(shape) if picks.random() < 0.3 else dim
        parts = [count for count in (1, 2, 3, 4) if size % count == 0]
        if size == 0 or picks.random() < 0.4:
            continue
        if size > 2 and picks.random() < 0.4:  # of a fused matrix
            bounds = sorted(picks.sample(range(size + 1), picks.randint(3, min(size + 1, 6))))
            ranges = list(itertools.pairwise(bounds))
            picks.shuffle(ranges)
            result.extend((given, *each) for each in ranges[: picks.randint(1, 4)])
        elif picks.random() < 0.5:
            count = picks.choice(parts)
            result.append(gpushm.shard(given, picks.randrange(count), count))
        else:
            begin = picks.randrange(size)
            result.append((given, begin, picks.randint(begin + 1, size)))
    return result


def ranges_of(shape: tuple[int, ...], slices: list[tuple[int, ...]]) -> list[list[slice]]:
    """The slices of each dimension; one for all of it, if there is none."""
    result: list[list[slice]] = [[] for _ in shape]
    for dim, begin, end, *parts in slices:
        unit = shape[dim] // parts[0] if parts else 1
        result[dim].append(slice(begin * unit, end * unit))
    return [each or [slice(None)] for each in result]


def joined(whole: Any, ranges: list[list[slice]]) -> Any:
    """The parts of a tensor of NumPy or safetensors, concatenated in the order of the ranges."""
    first, *others = ranges
    parts = []
    for each in first:
        part = whole[(each,)]
        for dim, further in enumerate(others, 1):
            some = [part[(slice(None),) * dim + (one,)] for one in further]
            part = np.concatenate(some, dim)
        parts.append(part)
    return np.concatenate(parts)


def test_slices_are_those_of_safetensors(client, tmp_path):
    picks = random.Random(38)
    path = tmp_path / "m.safetensors"
    for number in range(6):
        arrays = {
            f"layers.{i}.{name}": tensor(name, *(picks.randint(1, 12) for _ in range(i % 4 + 1)))
            for i, name in enumerate(NUMPY)
        }
        safetensors.numpy.save_file(arrays, path)
        slices = {name: random_slices(each.shape, picks) for name, each in arrays.items()}
        wanted = sorted(picks.sample(sorted(arrays), 8))
        client.load_tensors(
            path,
            f"m{number}",
            device="host",
            tensors=wanted,
            slices=slices,
            reading=picks.choice(["cached", "direct"]),
        ).close()
        with safetensors.safe_open(path, "numpy") as theirs:
            with gpushm.safe_open(f"m{number}", "numpy", client=client) as ours:
                assert ours.keys() == wanted
                for name in wanted:
                    ranges = ranges_of(arrays[name].shape, slices[name])
                    got = ours.get_tensor(name)
                    assert same(got, joined(theirs.get_slice(name), ranges)), (name, slices[name])
                    assert same(got, joined(arrays[name], ranges)), name
                    assert got.flags.c_contiguous


def test_ranks_have_their_parts(client, tmp_path):
    path = tmp_path / "m.safetensors"
    arrays = {
        "l.0.q_proj": tensor("bfloat16", 8, 6),
        "l.0.o_proj": tensor("bfloat16", 6, 8),
        "l.0.norm": tensor("bfloat16", 6),
        "l.1.q_proj": tensor("bfloat16", 8, 6),
    }
    header: dict[str, Any] = {}
    data = b""
    for name, each in arrays.items():
        place = [len(data), len(data) + each.nbytes]
        header[name] = {"dtype": "BF16", "shape": list(each.shape), "data_offsets": place}
        data += each.tobytes()
    write(path, header, data)
    parts = []
    for rank in range(2):
        slices = {"*.q_proj": gpushm.shard(0, rank, 2), "*.o_proj": [gpushm.shard(-1, rank, 2)]}
        gpushm.load_safetensors(
            path, f"r{rank}", device="host", client=client, tensors=["l.0.*"], slices=slices
        ).close()
        parts.append(gpushm.safe_open(f"r{rank}", "numpy", client=client).get_tensors())
        assert set(parts[-1]) == {"l.0.q_proj", "l.0.o_proj", "l.0.norm"}
        assert same(parts[-1]["l.0.norm"], arrays["l.0.norm"])
    assert same(np.concatenate([each["l.0.q_proj"] for each in parts]), arrays["l.0.q_proj"])
    assert same(np.concatenate([each["l.0.o_proj"] for each in parts], 1), arrays["l.0.o_proj"])
    with pytest.raises(gpushm.AlreadyExistsError, match="another selection"):
        client.load_tensors(path, "r0", device="host", tensors=["l.0.*"])


def test_ranks_have_their_parts_of_fused_matrices(client, tmp_path):
    """As the layers of vLLM: queries, keys and values, and two matrices of an MLP."""
    heads, kv_heads, size, ranks = 8, 4, 4, 2
    one = {"q": heads * size, "k": kv_heads * size, "v": kv_heads * size}
    parts = {name: tensor("float32", rows, 6) for name, rows in one.items()}
    gate, up = tensor("int16", 10, 6), tensor("int16", 10, 6)
    path = tmp_path / "m.safetensors"
    fused = {
        "qkv_proj": np.concatenate(list(parts.values())),
        "gate_up_proj": np.concatenate([gate, up]),
    }
    safetensors.numpy.save_file(fused, path)
    for rank in range(ranks):
        begin, qkv = 0, []
        for rows in one.values():
            share = rows // ranks
            qkv.append((0, begin + rank * share, begin + (rank + 1) * share))
            begin += rows
        slices = {
            "*qkv_proj": qkv,
            "*gate_up_proj": [gpushm.shard(0, half * ranks + rank, 2 * ranks) for half in (0, 1)],
        }
        client.load_tensors(path, f"r{rank}", device="host", slices=slices).close()
        got = gpushm.safe_open(f"r{rank}", "numpy", client=client).get_tensors()
        wanted = [np.split(each, ranks)[rank] for each in parts.values()]
        assert same(got["qkv_proj"], np.concatenate(wanted))
        wanted = [np.split(each, ranks)[rank] for each in (gate, up)]
        assert same(got["gate_up_proj"], np.concatenate(wanted))
        # Another order is another selection, although its shape is the same.
        with pytest.raises(gpushm.AlreadyExistsError, match="another selection"):
            client.load_tensors(
                path, f"r{rank}", device="host", slices=slices | {"*qkv_proj": qkv[::-1]}
            )


def test_patterns_are_those_of_fnmatch(client, tmp_path):
    picks = random.Random(1)
    path = tmp_path / "m.safetensors"
    names = {"".join(picks.choices("ab.ü[", k=picks.randint(1, 5))) for _ in range(60)}
    safetensors.numpy.save_file({name: np.zeros(1, "uint8") for name in names}, path)
    items = ["*", "?", "a", "b", ".", "ü", "[ab]", "[!a]", "[a-b]", "[!ü.]", "[", "*"]
    found = 0
    for number in range(40):
        pattern = "".join(picks.choices(items, k=picks.randint(1, 4)))
        expected = sorted(name for name in names if fnmatch.fnmatchcase(name, pattern))
        if pattern in names:
            expected = [pattern]
        if not expected:
            with pytest.raises(gpushm.InvalidArgumentError, match="no tensor"):
                client.load_tensors(path, f"m{number}", device="host", tensors=[pattern])
            continue
        found += 1
        client.load_tensors(path, f"m{number}", device="host", tensors=[pattern]).close()
        assert gpushm.safe_open(f"m{number}", client=client).keys() == expected, pattern
    assert found > 5


def test_wrong_selections_are_refused(client, model):
    def load(**options: Any) -> None:
        client.load_tensors(model, "m", device="host", **options)

    for tensors in ("a", b"a", ["a", 1]):
        with pytest.raises(TypeError):
            load(tensors=tensors)
    with pytest.raises(ValueError, match="pass None"):
        load(tensors=[])
    for slices in ({"a": "x"}, {"a": 3}, {"a": [3]}, {"a": [[0, 0, 1]]}, {1: (0, 0, 1)}):
        with pytest.raises(TypeError):
            load(slices=slices)
    for slices in (
        {"a": (0, 1)},
        {"a": (0, -1, 1)},
        {"a": (0, 0, 1, 0)},
        {"a": (0, 0, 2**64)},
        {"a": (2**31, 0, 1)},
        {"a": (0, 0.5, 1)},
        {"a": [(0, 0, 1, 2, 3)]},
    ):
        with pytest.raises(ValueError, match="is not"):
            load(slices=slices)
    with pytest.raises(gpushm.InvalidArgumentError, match=r"of shape \[5\]: it ends behind"):
        load(slices={"a": (0, 4, 6)})
    with pytest.raises(gpushm.InvalidArgumentError, match="cannot be divided"):
        load(slices={"a": gpushm.shard(0, 0, 2)})
    with pytest.raises(gpushm.InvalidArgumentError, match="0 to 3 and 2 to 4 overlap"):
        load(slices={"a": [(0, 2, 4), (0, 0, 3)]})
    with pytest.raises(gpushm.InvalidArgumentError, match="has the same dimension"):
        load(slices={"a": [(0, 2, 4), (-1, 0, 1)]})
    with pytest.raises(ValueError, match="no part 2 of 2"):
        gpushm.shard(0, 2, 2)
    assert names(client) == []


INDICES = [
    0,
    -1,
    slice(0, 1),
    slice(None),
    slice(1, None),
    (0, 1),
    (0, 1, 2),
    (..., 1),
    (..., slice(1, 3)),
    (1, ..., slice(2)),
    (slice(None), slice(0, 3, 2)),
    (slice(None), 1, slice(1, 4, 2)),
    (slice(0, 2), slice(1, 2), 0),
    ...,
    (),
]


def test_slices_share_the_memory_of_their_tensor(client, tmp_path):
    path = tmp_path / "m.safetensors"
    whole = tensor("float32", 2, 3, 4)
    safetensors.numpy.save_file({"b": whole, "s": np.array(2.5)}, path)
    client.load_tensors(path, "m", device="host")
    with safetensors.safe_open(path, "numpy") as theirs:
        numpy, arrays = (gpushm.safe_open("m", each, client=client) for each in ("numpy", None))
        for index in INDICES:
            expected = theirs.get_slice("b")[index]
            part = numpy.get_slice("b")[index]
            assert same(part, expected), index
            assert np.shares_memory(part, numpy.get_tensor("b"))
            array = arrays.get_slice("b")[index]
            assert same(np.from_dlpack(array), expected), index
        assert same(numpy.get_slice("s")[...], theirs.get_slice("s")[...])
        for index in (5, (0, 0, 0, 0), (0, 5)):
            with pytest.raises(safetensors.SafetensorError):
                theirs.get_slice("b")[index]
            for opened in (numpy, arrays):
                with pytest.raises(IndexError):
                    opened.get_slice("b")[index]
    with pytest.raises(IndexError, match="positive step"):
        arrays.get_slice("b")[::-1]
    # As Python's: the reference refuses ends behind the tensor, and negative ones.
    assert same(numpy.get_slice("b")[0:10, -2:], whole[0:10, -2:])
    assert arrays.get_slice("b")[5:].shape == (0, 3, 4)
    part = numpy.get_slice("b")[1]
    numpy.close()
    arrays.close()
    gc.collect()
    assert same(part, whole[1])


def test_tensors_and_slices_are_arrays_of_jax(client, model):
    jax = pytest.importorskip("jax")
    client.load_tensors(model, "m", device="host")
    with gpushm.safe_open("m", "flax", device="cpu", client=client) as opened:
        result = opened.get_tensor("layer.float32")
        assert isinstance(result, jax.Array)
        part = opened.get_slice("layer.float32")[1:, 2]
    with safetensors.safe_open(model, "numpy") as theirs:
        assert same(np.asarray(result), theirs.get_tensor("layer.float32"))
        assert same(np.asarray(part), theirs.get_slice("layer.float32")[1:, 2])


def test_closed_missing_and_plain_segments_are_errors(client, model, monkeypatch, broker):
    monkeypatch.setenv("GPUSHM_SOCKET", broker.socket)
    with gpushm.load_safetensors(model, "m", device="host") as segment:
        assert "__metadata__" in segment.tensor_table()
    opened = gpushm.safe_open("m")
    assert "safe_open" in repr(opened)
    for call in (opened.get_tensor, opened.get_slice):
        with pytest.raises(KeyError, match="zz"):
            call("zz")
    opened.close()
    opened.close()
    for call in (opened.keys, opened.metadata, opened.get_tensors):
        with pytest.raises(gpushm.InvalidArgumentError, match="closed"):
            call()
    with pytest.raises(ValueError, match="framework is"):
        gpushm.safe_open("m", "tensorflow")
    with pytest.raises(gpushm.NoSuchSegmentError):
        gpushm.safe_open("no")
    with pytest.raises((gpushm.TimedOutError, gpushm.NoSuchSegmentError)):
        client.open_tensors("no", timeout=0.2)
    client.create("plain", 64, device="host", lifetime="persistent").publish()
    with pytest.raises(gpushm.InvalidArgumentError, match="without tensors"):
        gpushm.safe_open("plain")
    with pytest.raises(gpushm.AlreadyExistsError):
        client.load_tensors(model, "plain", device="host")
    with pytest.raises(gpushm.Error):
        client.load_tensors(model.parent / "none.safetensors", "n", device="host")
    for wrong in ({"threads": 0}, {"reading": "fast"}, {"threads": 65}):
        with pytest.raises(ValueError):  # noqa: PT011
            client.load_tensors(model, "n", device="host", **wrong)
    for paths in ([], 5, [5]):
        with pytest.raises((TypeError, ValueError)):
            client.load_tensors(paths, "n", device="host")
    with pytest.raises(TypeError):
        gpushm.tensors_size(5)
    assert names(client) == ["m", "plain"]


def test_get_returns_the_tensors_of_a_loaded_model(client, model):
    client.load_tensors([str(model)], "m", device="host", reading="cached", threads=2)
    result = client.get("m", "numpy")
    with safetensors.safe_open(model, "numpy") as theirs:
        assert list(result) == theirs.offset_keys()
        assert all(same(result[name], theirs.get_tensor(name)) for name in result)


def test_safe_open_names_the_tensors_of_a_structure_by_their_path(client):
    tied = tensor("float32", 4, 4)
    client.put("m", {"a": tied, "b": {"c": tied, "d": [tensor("int8", 3)]}}, device="host")
    with gpushm.safe_open("m", "numpy", client=client) as opened:
        assert opened.keys() == ["a", "b.c", "b.d.0"]
        assert same(opened.get_tensor("b.c"), tied)
        assert list(opened.metadata()) == ["gpushm.tree"]


def test_a_model_of_several_files_is_loaded_by_index_folder_or_files(client, tmp_path):
    parts = {
        "model-1.safetensors": {"z": tensor("float32", 8), "a": tensor("int8", 3)},
        "model-2.safetensors": {"m": tensor("bool", 2, 2)},
    }
    for name, tensors in parts.items():
        safetensors.numpy.save_file(tensors, tmp_path / name, metadata={"format": "pt", name: "x"})
    index = tmp_path / "model.safetensors.index.json"
    weight_map = {each: name for name, tensors in parts.items() for each in tensors}
    index.write_text(json.dumps({"metadata": {"total_size": 39}, "weight_map": weight_map}))
    everything = parts["model-1.safetensors"] | parts["model-2.safetensors"]
    # The index, the folder, and the files: one model.
    for paths in (index, tmp_path, [tmp_path / name for name in parts], os.fsencode(index)):
        client.load_tensors(paths, "m", device="host")
        with gpushm.safe_open("m", "numpy", client=client) as opened:
            assert opened.keys() == ["a", "m", "z"]
            assert all(same(opened.get_tensor(name), everything[name]) for name in everything)
            assert opened.metadata() == {"format": "pt"} | dict.fromkeys(parts, "x")
    for wrong in (
        weight_map | {"more": "model-1.safetensors"},
        weight_map | {"m": "../model-2.safetensors"},
        [],
    ):
        index.write_text(json.dumps({"weight_map": wrong}))
        with pytest.raises(gpushm.InvalidFileError) as caught:
            client.load_tensors(index, "n", device="host")
        assert isinstance(caught.value, ValueError)
    index.write_text('{"weight_map":{}}')
    client.load_tensors(index, "n", device="host")
    assert client.get("n") == {}
    client.remove("n")
    with pytest.raises(gpushm.InvalidFileError, match="is also in"):
        client.load_tensors([tmp_path / "model-2.safetensors"] * 2, "n", device="host")
    assert names(client) == ["m"]


# ---- progress, stops and signals ----


@pytest.fixture
def large(tmp_path: Path) -> Iterator[Path]:
    """Of 2 GiB that take no space: a load of them takes a while."""
    size = 2 << 30
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    path = tmp_path / "large.safetensors"
    write(path, header)
    with path.open("r+b") as file:
        file.truncate(8 + len(header) + size)
    yield path
    path.unlink()


def test_progress_is_reported_in_bytes(client, model):
    seen: list[tuple[int, int, int, bool]] = []
    client.load_tensors(model, "m", device="host", progress=lambda *how_far: seen.append(how_far))
    for done, total, resumed, is_here in seen:
        assert 0 <= resumed <= done <= total
        assert is_here
        assert total > 100


def in_thread(function) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()


def test_a_file_that_has_changed_is_not_the_loaded_one(client, tmp_path):
    path = tmp_path / "model.safetensors"
    weights = np.zeros((64, 1 << 14), "float32")
    safetensors.numpy.save_file({"w": weights}, path)
    gpushm.load_safetensors(path, "m/changed", device="host", client=client).close()
    weights[33, 7:1000] = 5
    safetensors.numpy.save_file({"w": weights}, path)
    with pytest.raises(gpushm.AlreadyExistsError, match="changed since it was loaded"):
        gpushm.load_safetensors(path, "m/changed", device="host", client=client)
    with pytest.raises(ValueError, match="verify"):
        client.load_tensors(path, "m/changed", device="host", verify="never")
    with gpushm.safe_open("m/changed", "numpy", client=client) as former:
        gpushm.load_safetensors(
            path, "m/changed", device="host", replace=True, verify="full", client=client
        ).close()
        with gpushm.safe_open("m/changed", "numpy", client=client) as now:
            assert now.get_tensor("w")[33, 8] == 5
        assert former.get_tensor("w")[33, 8] == 0
    client.remove("m/changed")


def test_an_exception_of_the_callback_ends_the_load(client, large):
    class OurError(Exception):
        pass

    def fail(*how_far: int) -> None:
        raise OurError(how_far)

    def check() -> None:
        with pytest.raises(OurError) as caught:
            client.load_tensors(large, "m", device="host", threads=1, progress=fail)
        assert caught.value.args[0][1] == 2 << 30
        assert caught.traceback[-1].name == "fail"
        assert names(client) == []

    check()
    in_thread(check)


def test_a_stop_ends_the_load(client, large):
    stop = gpushm.Stop()
    with pytest.raises(gpushm.CancelledError):
        client.load_tensors(
            large,
            "m",
            device="host",
            threads=1,
            stop=stop,
            progress=lambda *how_far: stop.request(),
        )
    assert names(client) == []
    with pytest.raises(gpushm.TimedOutError):
        client.load_tensors(large, "m", device="host", threads=1, timeout=0.05)
    assert names(client) == []


@pytest.mark.parametrize("with_callback", [True, False])
def test_ctrl_c_ends_the_load(start, client, large, with_callback):
    child = start(
        """
        import gpushm, os, sys, time
        client = gpushm.connect(sys.argv[1])
        def report(*how_far):
            print('loading', flush=True)
        print('begin', flush=True)
        try:
            client.load_tensors(sys.argv[2], 'm', device='host', threads=1,
                                progress=report if sys.argv[3] == 'True' else None)
        except KeyboardInterrupt:
            print('interrupted', [each.name for each in client.list('m')], flush=True)
        """,
        str(large),
        str(with_callback),
    )
    assert child.line() == "begin"
    if with_callback:
        assert child.line() == "loading"
    else:
        wait_until(lambda: "m" in names(client), "the load has begun")
    begin = time.monotonic()
    child.process.send_signal(signal.SIGINT)
    assert child.succeed().splitlines()[-1] == "interrupted []"
    assert time.monotonic() - begin < 5


def test_a_waiting_process_continues_the_load_of_a_killed_one(start, client, large):
    # A waiter goes on; here it is this process.
    child = start(
        """
        import gpushm, sys
        print('begin', flush=True)
        gpushm.connect(sys.argv[1]).load_tensors(sys.argv[2], 'm', device='host', threads=1)
        print('end', flush=True)
        """,
        str(large),
    )
    assert child.line() == "begin"
    wait_until(lambda: "m" in names(client), "the load has begun")
    with pytest.raises(gpushm.TimedOutError):
        client.open_tensors("m", timeout=0.05)
    seen: list[bool] = []

    def report(done: int, total: int, resumed: int, is_here: bool) -> None:
        if not seen:
            child.kill()
        seen.append(is_here)

    segment = client.load_tensors(large, "m", device="host", progress=report)
    assert segment.size > 2 << 30
    assert seen[0] is False


class Terminal:
    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return True


def test_progress_on_a_terminal_is_one_line(client, large, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    gpushm.load_safetensors(large, "m", client=client, device="host", threads=1, progress=True)
    monkeypatch.undo()
    lines = terminal.text.split("\r")
    assert terminal.text.endswith("\n")
    assert any(" GB/s, " in line and " s left" in line for line in lines)
    assert all(not line or line.startswith("m: ") for line in lines)


# ---- hostile files ----

ENTRY = b'"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}'


def verdicts(client: gpushm.Client, path: Path) -> tuple[bool, bool, str]:
    """Whether the reference and this library accept a file; and why not."""
    try:
        dict(safetensors.deserialize(path.read_bytes()))
        theirs = True
    except safetensors.SafetensorError:
        theirs = False
    try:
        client.load_tensors(path, "fuzz", device="host", threads=1).close()
    except gpushm.InvalidFileError as error:
        return theirs, False, error.cause
    client.remove("fuzz")
    return theirs, True, ""


@pytest.mark.parametrize(
    "file",
    [
        b"",
        b"\x08",
        bytes(8),
        struct.pack("<Q", 1 << 63) + b"{}",
        struct.pack("<Q", 100_000_001) + b"{}",
        struct.pack("<Q", 3) + b"{}",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 3) + b"\x00{}",
        struct.pack("<Q", 2) + b"{}x",
        struct.pack("<Q", 5) + b"\xef\xbb\xbf{}",
        *[
            struct.pack("<Q", len(header)) + header + b"data"
            for header in (
                b"{" + ENTRY.replace(b"[0,4]", b"[0,5]") + b"}",
                b"{" + ENTRY.replace(b"[0,4]", b"[1,4]") + b"}",
                b"{" + ENTRY.replace(b"[0,4]", b"[0,3]") + b"}",
                b"{" + ENTRY.replace(b"[0,4]", b"[4,0]") + b"}",
                b"{" + ENTRY.replace(b"[0,4]", b"[-1,4]") + b"}",
                b"{" + ENTRY.replace(b"[0,4]", b"[0,4.0]") + b"}",
                b"{" + ENTRY.replace(b"[0,4]", b"[0,4,4]") + b"}",
                b"{" + ENTRY.replace(b"U8", b"U9") + b"}",
                b"{" + ENTRY.replace(b"[4]", b"[4611686018427387904,4]") + b"}",
                b"{" + ENTRY + b"," + ENTRY.replace(b'"w"', b'"v"') + b"}",
                b'{"__metadata__":{"a":1},' + ENTRY + b"}",
                b"{" + ENTRY + b"",
            )
        ],
    ],
)
def test_a_hostile_file_is_refused_as_by_safetensors(client, tmp_path, file):
    path = tmp_path / "hostile.safetensors"
    path.write_bytes(file)
    theirs, ours, cause = verdicts(client, path)
    assert (theirs, ours) == (False, False)
    assert cause
    assert names(client) == []


def test_a_refused_load_leaves_no_segment(client, tmp_path):
    good = write(tmp_path / "m.safetensors", b"{" + ENTRY + b"}", b"data")
    bad = write(tmp_path / "n.safetensors", b"{" + ENTRY + b"}", b"dat")
    client.load_tensors(good, "m", device="host")
    held = Held()
    for _ in range(20):
        with pytest.raises(gpushm.InvalidFileError, match="truncated"):
            client.load_tensors(bad, "n", device="host")
        with pytest.raises(gpushm.AlreadyExistsError):
            client.put("m", {"a": np.ones(3)}, device="host")
        with gpushm.safe_open("m", "numpy", client=client) as opened:
            assert opened.get_tensor("w").tobytes() == b"data"
            with pytest.raises(KeyError):
                opened.get_tensor("v")
    gc.collect()
    assert held == Held()
    assert client.stat("m").leases == 0


@pytest.mark.parametrize(
    ("header", "text"),
    [
        (b"{" + ENTRY + b"," + ENTRY + b"}", 'the name "w" is there twice'),
        (b'{"__metadata__":{"a":"b","a":"c"},' + ENTRY + b"}", 'metadata "a" is there twice'),
        (b'{"w":["U8",[4],[0,4]]}', "has an array where it may not be"),
    ],
)
def test_files_that_only_safetensors_accepts_are_refused_with_a_cause(
    client, tmp_path, header, text
):
    path = write(tmp_path / "m.safetensors", header, b"data")
    theirs, ours, cause = verdicts(client, path)
    assert (theirs, ours) == (True, False)
    assert text in cause


@pytest.mark.parametrize("depth", [1, 124, 125, 126, 127, 500])
def test_headers_are_refused_from_the_same_depth_as_by_safetensors(client, tmp_path, depth):
    header = b"{" + ENTRY[:-1] + b',"x":' + b"[" * depth + b"]" * depth + b"}}"
    path = write(tmp_path / "m.safetensors", header, b"data")
    theirs, ours, _ = verdicts(client, path)
    assert theirs == ours == (depth <= 125)


# What the library refuses although the reference accepts it, by the words of its text.
STRICTER = {
    "duplicates": "is there twice",
    "an entry as an array": "has an array where it may not be",
}


MEMBERS = [
    *[
        ENTRY + b",",
        b'"v":{"dtype":"U8","shape":[0],"data_offsets":[20,20]},',
        b'"w":["U8",[4],[0,4]],',
    ],
    *[b'"v":["F16",[],[20,22]],', b'"e":["U8",[0],[0,0]],', b'"__metadata__":{"a":"b"},'],
    *[b'"__metadata__":null,', b'"__metadata__":{},', b'"a":"c",', b'"format":"pt",', b'"x":1,'],
    *[b'"dtype":"U8",', b'"shape":[4],', b'"strides":[1],', b'"hash":"0",', b'"hash":5,'],
    *[b'"x":1e400,', b'"x":-1e400,', b'"x":123456789012345678901234567890,', b'"x":"\\ud800",'],
    *[b'"x":' + b"[" * depth + b"]" * depth + b"," for depth in (1, 120, 125, 126, 127, 130)],
    *[b'"\xc3\xbc":{"dtype":"U8","shape":[0,5],"data_offsets":[0,0]},', b'"x":-0,', b'"x":1E+2,'],
]
VALUES = [
    *[b"0", b"4", b"20", b"22", b"-0", b"4.0", b"1e1", b"null", b'"F32"', b'"U8"', b"[]", b"{}"],
    *[b"18446744073709551615", b"18446744073709551616", b"1e400", b'"\\u0041"', b"true", b"01"],
]


def mutated(random_of: random.Random, header: bytes) -> bytes:
    result = bytearray(header)
    pieces = [
        *[
            b'"',
            b"{",
            b"}",
            b"[",
            b"]",
            b",",
            b":",
            b"0",
            b"1",
            b"-",
            b".",
            b"e",
            b"\\",
            b" ",
            b"\n",
        ],
        *[b"\x00", b"\xff", b"null", b"true", b"1e400", b"18446744073709551616", b"\\u0000"],
        *[
            b"\\ud800",
            b"dtype",
            b"shape",
            b"data_offsets",
            b"__metadata__",
            b"BF16",
            b"F4",
            b"F6_E2M3",
        ],
        *[b'"x":1,', b'"x":[1,{"y":2}],', b'"dtype":"U8",', b'"w":', b"[0,4]", ENTRY + b","],
        *[b'"__metadata__":{"a":"b"},', b'"__metadata__":null,', b'["U8",[4],[0,4]]', b"[" * 130],
    ]
    for _ in range(random_of.choice([1, 1, 1, 2, 3])):
        at = random_of.randrange(len(result) + 1)
        match random_of.randrange(9):
            case 6 | 7:  # where a member begins
                members = [i + 1 for i, each in enumerate(result) if each in b"{,"]
                if members:
                    at = random_of.choice(members)
                    result[at:at] = random_of.choice(MEMBERS)
            case 8:  # another value
                values = [i + 1 for i, each in enumerate(result) if each in b":[,"]
                ends = [i for i, each in enumerate(result) if each in b",]}"]
                if values:
                    at = random_of.choice(values)
                    end = min((each for each in ends if each > at), default=at)
                    result[at:end] = random_of.choice(VALUES)
            case 0:
                result[at:at] = random_of.choice(pieces)
            case 1:
                del result[at : at + random_of.choice([1, 1, 2, 5])]
            case 2 if at < len(result):
                result[at] ^= 1 << random_of.randrange(8)
            case 3:
                size = random_of.randrange(1, 30)
                place = random_of.randrange(len(result) + 1)
                result[at:at] = result[place : place + size]
            case 4:
                size = random_of.randrange(1, 8)
                result[at : at + size] = random_of.choice(pieces)
            case _:
                numbers = [i for i, each in enumerate(result) if 0x30 <= each <= 0x39]
                if numbers:
                    result[random_of.choice(numbers)] = random_of.randrange(0x30, 0x3A)
    return bytes(result)


def test_random_headers_that_safetensors_refuses_are_refused(client, tmp_path):
    """Whatever the reference refuses is refused; GPUSHM_FUZZ_COUNT and _SEED give more."""
    seed = int(os.environ.get("GPUSHM_FUZZ_SEED", "18"))
    count = int(os.environ.get("GPUSHM_FUZZ_COUNT", "3000"))
    random_of = random.Random(seed)
    path = tmp_path / "fuzz.safetensors"
    data = bytes(range(22))
    headers = [
        b"{" + ENTRY + b',"v":{"dtype":"F32","shape":[2,2],"data_offsets":[4,20]},'
        b'"e":{"dtype":"I64","shape":[0,3],"data_offsets":[20,20]},'
        b'"s":{"dtype":"F16","shape":[],"data_offsets":[20,22]}}',
        b'{"__metadata__":{"format":"pt","a":"b"},'
        b'"w":{"shape":[11],"data_offsets":[0,22],"dtype":"BF16","extra":{"x":[1,2.5,null,true]}}}  ',
    ]
    seen = {"both accept": 0, "both refuse": 0} | dict.fromkeys(STRICTER, 0)
    for i in range(count):
        header = mutated(random_of, random_of.choice(headers))
        path.unlink(missing_ok=True)  # ext4 flushes a file that is truncated and written again
        write(path, header, data)
        theirs, ours, cause = verdicts(client, path)
        where = f"seed {seed}, number {i}: {header!r}: {cause}"
        if theirs == ours:
            seen["both accept" if ours else "both refuse"] += 1
            continue
        assert theirs, f"accepted, but the reference refuses it: {where}"
        reasons = [why for why, text in STRICTER.items() if text in cause]
        assert reasons, f"refused, but the reference accepts it: {where}"
        seen[reasons[0]] += 1
    print(seen)
    assert seen["both accept"] > count / 100
    assert seen["both refuse"] > count / 4
    assert names(client) == []


def test_loads_and_opens_wait_for_a_broker_that_starts_later(broker, monkeypatch, tmp_path):
    monkeypatch.setenv("GPUSHM_SOCKET", broker.socket)
    path = tmp_path / "m.safetensors"
    safetensors.numpy.save_file({"x": np.arange(3)}, path)
    broker.kill()
    with pytest.raises(gpushm.BrokerUnreachableError):
        gpushm.safe_open("m")
    results: list[Any] = []

    def read() -> None:
        with gpushm.safe_open("m", "np", timeout=60) as opened:
            results.append(opened.get_tensor("x").tolist())

    def load() -> None:
        results.append(gpushm.load_safetensors(path, "m", device="host", timeout=60))

    threads = [threading.Thread(target=read), threading.Thread(target=load)]
    for thread in threads:
        thread.start()
    broker.start()
    for thread in threads:
        thread.join(60)
    assert len(results) == 2
    assert [0, 1, 2] in results
