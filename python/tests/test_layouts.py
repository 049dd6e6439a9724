# SPDX-License-Identifier: Apache-2.0
"""Elements of all types in all layouts, against NumPy and safetensors: random cases of a fixed seed
(GPUSHM_TEST_SEED), which each failure shows.
"""

from __future__ import annotations

import array
import collections
import ctypes
import json
import os
import random
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy

import gpushm
import gpushm._core
import gpushm._frameworks

SEED = int(os.environ.get("GPUSHM_TEST_SEED", "37"))
NUMPY_TYPES = [
    *["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"],
    *["float16", "float32", "float64", "complex64", "complex128"],
]
OTHER_TYPES = [each for each in gpushm._core.dtypes() if hasattr(ml_dtypes, each)]
SWAPPED = [np.dtype(each).newbyteorder(">") for each in NUMPY_TYPES if np.dtype(each).itemsize > 1]
NATIVE = [np.dtype(getattr(ml_dtypes, each, each)) for each in NUMPY_TYPES + OTHER_TYPES]


def contents(dtype: np.dtype, shape: tuple[int, ...], chance: random.Random) -> np.ndarray:
    count = int(np.prod(shape))
    if dtype == np.bool_:
        return np.array([chance.random() < 0.5 for _ in range(count)], bool).reshape(shape)
    raw = np.frombuffer(chance.randbytes(count * dtype.itemsize), np.uint8)
    return raw.view(dtype).reshape(shape)


def layout(whole: np.ndarray, chance: random.Random) -> np.ndarray:
    """A view: strides of any sign, zero, of any order of dimensions."""
    result = whole.transpose(chance.sample(range(whole.ndim), whole.ndim))
    steps = [chance.choice([1, 1, 1, 2, -1, -2]) for _ in range(result.ndim)]
    result = result[(*(slice(None, None, step) for step in steps), ...)]
    if chance.random() < 0.2:
        result = np.broadcast_to(result, (2, *result.shape))
    return result


def random_array(dtypes: list[np.dtype], chance: random.Random) -> np.ndarray:
    shape = tuple(chance.choice([1, 2, 3, 4, 5, 0]) for _ in range(chance.randrange(5)))
    return layout(contents(chance.choice(dtypes), shape, chance), chance)


def described(array: np.ndarray) -> str:
    return f"seed {SEED}: {array.dtype.str} {array.dtype} {array.shape} strides {array.strides}"


def assert_same(result: Any, expected: np.ndarray, case: str) -> None:
    result = np.asarray(result)
    assert (result.dtype, result.shape) == (expected.dtype, expected.shape), case
    assert result.tobytes() == expected.tobytes(), case


def test_structures_are_got_as_they_were_put(client):
    chance = random.Random(SEED)
    for _ in range(25):
        tree = {f"t{i}": random_array(NATIVE, chance) for i in range(8)}
        client.put("m", tree, device="host").close()
        result = client.get("m", "numpy")
        for name, each in tree.items():
            assert_same(result[name], each, described(each))
        del result
        client.remove("m")


def test_other_byte_orders_are_refused_with_their_place(client):
    chance = random.Random(SEED)
    target = client.create("t", 4096, device="host")
    for dtype in SWAPPED:
        wrong = random_array([dtype], chance)
        text = rf"elements of {dtype.str} are in big-endian order.*astype\(\"={dtype.str[1:]}\"\)"
        with pytest.raises(TypeError, match=r"at a\.1\.b: " + text):
            client.put("m", {"a": [0, {"b": wrong}]}, device="host")
        with pytest.raises(TypeError, match="at b: " + text):
            client.share("m", {"b": contents(dtype, (3,), chance)})
        with pytest.raises(TypeError, match=text):
            target.view(dtype.newbyteorder("="), wrong.shape).copy_from(wrong)
        assert [each.name for each in client.list()] == ["t"]
        for layout_of in (wrong.shape, (0,)):
            with pytest.raises(TypeError, match=text):
                target.view(dtype, layout_of)


def test_elements_are_not_converted(client):
    """Only bytes without a type are taken as they are."""
    segment = client.create("t", 4096, device="host")
    for into in NATIVE:
        target = segment.view(into, 4)
        for origin in NATIVE + SWAPPED:
            source = np.zeros(4 * into.itemsize // origin.itemsize or 1, origin)
            if origin == into:
                target.copy_from(source)
                continue
            segment.fill(1)
            with pytest.raises(TypeError):
                target.copy_from(source)
            assert segment.read(0, 256) == b"\x01" * 256, (into, origin)
    values = [1, 2, 3, 4]
    for code, name in [("b", "int8"), ("H", "uint16"), ("i", "int32"), ("l", "int64"),
                       ("Q", "uint64"), ("f", "float32"), ("d", "float64")]:  # fmt: skip
        source = array.array(code, values)
        segment.view(name, 4).copy_from(source)
        assert np.asarray(segment.view(name, 4)).tolist() == values
        other = "uint8" if name == "int8" else "int8"
        with pytest.raises(TypeError, match=f"elements of {name}"):
            segment.view(other, source.itemsize * 4).copy_from(source)
    for swapped in ((ctypes.c_float.__ctype_be__ * 4)(), memoryview(np.zeros(4, ">f4"))):
        with pytest.raises(TypeError, match="the format >f"):
            segment.view("float32", 4).copy_from(swapped)
    for plain in (bytes(16), bytearray(16), memoryview(bytes(16)), array.array("B", bytes(16))):
        segment.view("float32", 4).copy_from(plain)
    segment.write(np.array([1, 2], ">u2"))  # bytes
    assert segment.read(0, 4) == b"\x00\x01\x00\x02"


class Buffer(ctypes.Structure):
    """A Py_buffer."""

    _fields_ = (
        ("buf", ctypes.c_void_p), ("obj", ctypes.py_object), ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t), ("readonly", ctypes.c_int), ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p), ("shape", ctypes.POINTER(ctypes.c_ssize_t)),
        ("strides", ctypes.POINTER(ctypes.c_ssize_t)), ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )  # fmt: skip


def exported(buffered: Any, flags: int) -> tuple[Any, ...] | None:
    """What the buffer protocol gives; None: refused."""
    buffer = Buffer()
    python = ctypes.PyDLL(None)  # of this test: its functions have types
    get = python.PyObject_GetBuffer
    get.argtypes = [ctypes.py_object, ctypes.POINTER(Buffer), ctypes.c_int]
    try:
        get(buffered, ctypes.byref(buffer), flags)
    except (BufferError, ValueError):
        return None
    ndim = buffer.ndim
    result = (
        buffer.buf, buffer.len, buffer.itemsize, buffer.format is not None,
        buffer.shape[:ndim] if buffer.shape else None,
        buffer.strides[:ndim] if buffer.strides else None,
    )  # fmt: skip
    python.PyBuffer_Release(ctypes.byref(buffer))
    return result


def test_all_buffer_flags_are_answered_as_by_numpy(client):
    chance = random.Random(SEED)
    segment = client.create("t", 1 << 20, device="host")
    memory = np.asarray(segment)
    orders = [0x8, 0x18, 0x38, 0x58, 0x98, 0x118, 0x0]  # ND to INDIRECT, and SIMPLE
    refused = 0
    for _ in range(150):
        dtype = np.dtype(chance.choice(NUMPY_TYPES))
        shape = tuple(chance.choice([1, 2, 3, 4]) for _ in range(chance.randrange(1, 4)))
        if chance.random() < 0.7:
            strides = np.zeros(shape, dtype, order=chance.choice("CF")).strides
            strides = tuple(each // dtype.itemsize for each in strides)
        else:
            strides = tuple(chance.randrange(6) for _ in shape)
        ours = segment.view(dtype, shape, strides=strides)
        theirs = np.lib.stride_tricks.as_strided(
            memory.view(dtype), shape, [each * dtype.itemsize for each in strides], writeable=True
        )
        for order in orders:
            flags = order | chance.choice([0, 1]) | chance.choice([0, 4])
            case = f"seed {SEED}: flags {flags:#x} {dtype} {shape} strides {strides}"
            expected, result = exported(theirs, flags), exported(ours, flags)
            refused += expected is None
            if expected is None or result is None:
                assert result is expected, case
                continue
            assert result[:5] == expected[:5], case
            wanted = [each * dtype.itemsize for each in strides]
            assert result[5] == (wanted if order & 0x10 else None), case
        assert memoryview(ours).tobytes() == ours.tobytes() if dtype.kind != "c" else True
    assert refused > 100


def random_index(shape: tuple[int, ...], steps: tuple[int, ...], chance: random.Random) -> Any:
    result: list[Any] = []
    head = chance.randrange(len(shape) + 1)
    tail = chance.randrange(len(shape) - head + 1) if chance.random() < 0.5 else None
    for size in shape[:head] + shape[len(shape) - (tail or 0) :]:
        if size and chance.random() < 0.3:
            result.append(chance.randrange(-size, size))
        else:
            ends = [None, *range(-size - 1, size + 2)]
            result.append(slice(chance.choice(ends), chance.choice(ends), chance.choice(steps)))
    if tail is not None:
        result.insert(head, ...)
    return tuple(result)


def expected_of(whole: np.ndarray, index: tuple[Any, ...]) -> np.ndarray:
    return np.asarray(whole[index])


def test_slices_are_those_of_numpy(client, tmp_path):
    chance = random.Random(SEED)
    names = [f"t{i}" for i in range(12)]
    tensors = {}
    for name in names:
        shape = tuple(chance.choice([1, 2, 3, 4, 5]) for _ in range(chance.randrange(1, 4)))
        dtypes = [np.dtype(each) for each in NUMPY_TYPES if each[:7] != "complex"]
        tensors[name] = contents(chance.choice(dtypes), shape, chance)
    safetensors.numpy.save_file(tensors, tmp_path / "m.safetensors")
    client.load_tensors(tmp_path / "m.safetensors", "m", device="host").close()
    arrays = gpushm.safe_open("m", client=client)
    numpys = gpushm.safe_open("m", "numpy", client=client)
    with arrays, numpys, safetensors.safe_open(tmp_path / "m.safetensors", "numpy") as reference:
        for _ in range(300):
            name = chance.choice(names)
            whole = tensors[name]
            index = random_index(whole.shape, (None, 1, 2, 3), chance)
            case = f"{described(whole)}[{index}]"
            expected = expected_of(whole, index)
            assert_same(arrays.get_slice(name)[index], expected, case)
            assert_same(numpys.get_slice(name)[index], expected, case)
            index = random_index(whole.shape, (None, 1, -1, -2), chance)
            assert_same(numpys.get_slice(name)[index], expected_of(whole, index), case)
            first = tuple(slice(0, chance.randrange(1, size + 1)) for size in whole.shape)
            assert_same(arrays.get_slice(name)[first], reference.get_slice(name)[first], case)


def test_slices_of_elements_of_four_bits_count_elements(client):
    table = json.dumps({"x": {"dtype": "F4", "shape": [4, 8], "data_offsets": [0, 16]}})
    segment = client.create("f4", gpushm.tensors_size(table), device="host", lifetime="persistent")
    segment.write(bytes(range(16)))
    segment.publish_tensors(table)
    rows = np.arange(16, dtype="uint8").reshape(4, 4)
    with gpushm.safe_open("f4", client=client) as opened:
        part = opened.get_slice("x")
        assert part.get_shape() == [4, 8]
        for index, expected in [
            (np.s_[:, 0:4], rows[:, :2]), (np.s_[:, 4:8], rows[:, 2:]), (np.s_[:, 4:], rows[:, 2:]),
            (np.s_[:, -2:], rows[:, 3:]), (np.s_[..., 2:4], rows[:, 1:2]), (np.s_[1], rows[1]),
            (np.s_[1:3], rows[1:3]), (np.s_[::2, 0:2], rows[::2, :1]), (np.s_[3, 6:8], rows[3, 3:]),
            (np.s_[:, :], rows), (np.s_[:, :, ...], rows), (np.s_[...], rows),
            (np.s_[:, 6:2], rows[:, 3:3]),
        ]:  # fmt: skip
            assert part[index].shape == expected.shape, index
            assert part[index].tobytes() == expected.tobytes(), index
        for index in (np.s_[:, 1:4], np.s_[:, 0:3], np.s_[:, ::2], np.s_[0, 0], np.s_[..., 5],
                      np.s_[:, ::-1], np.s_[:, :, :], np.s_[None], np.s_[0, [0, 1]]):  # fmt: skip
            with pytest.raises(IndexError):
                part[index]


def test_names_of_types_are_those_of_the_library():
    """The list of this package and that of the library agree, also about sizes."""
    assert "F6_E2M3" not in gpushm._frameworks.DTYPES
    assert len(gpushm._frameworks.DTYPES) == 22
    for in_table, name in gpushm._frameworks.DTYPES.items():
        if in_table == "F4":
            continue
        size = np.dtype(getattr(ml_dtypes, name, None) or {"complex32": "u4"}.get(name, name))
        entry = {"dtype": in_table, "shape": [3], "data_offsets": [0, 3 * size.itemsize]}
        gpushm.tensors_size(json.dumps({"x": entry}))


State = collections.namedtuple("State", ["count", "mu"])


def test_scalars_and_namedtuples_of_optimisers_are_kept(client):
    """NumPy's scalars are values; namedtuples keep their names."""
    tree = {
        "step": np.int64(1 << 40),
        "loss": np.float32(0.5),
        "flags": (np.bool_(True), np.str_("x"), np.float64(2.5), np.uint64((1 << 64) - 1)),
        "state": (State(np.int32(3), {"w": np.arange(3)}), State(0, ())),
        "phase": np.complex64(1 + 2j),
        "scale": ml_dtypes.bfloat16(1.5),
    }
    client.put("m", tree, device="host")
    result = client.get("m", "numpy")
    assert (result["step"], type(result["step"])) == (1 << 40, int)
    assert (result["loss"], type(result["loss"])) == (0.5, float)
    assert result["flags"] == (True, "x", 2.5, (1 << 64) - 1)
    assert type(result["flags"][0]) is bool
    first, second = result["state"]
    assert (type(first).__name__, first._fields) == ("State", ("count", "mu"))
    assert first.count == 3
    assert first.mu["w"].tolist() == [0, 1, 2]
    assert second == (0, ())
    assert type(first) is type(second)
    assert result["phase"] == np.complex64(1 + 2j)
    assert float(result["scale"]) == 1.5


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (np.array(["x"]), "at a.b: gpushm has no dtype str32"),
        (object(), "at a.b: .* has no __dlpack__"),
        ({1.5: 1}, "at a.b: the key 1.5 is not"),
        (np.ma.MaskedArray([1, 2], [True, False]), "at a.b: a masked array"),
        (np.datetime64("2020"), "at a.b: gpushm has no dtype datetime64"),
        (np.zeros(2, [("x", "i4")]), "at a.b: gpushm has no dtype void32"),
        (np.longdouble(1), "at a.b: gpushm has no dtype"),
    ],
)
def test_errors_name_the_place_in_the_structure(client, wrong, text):
    with pytest.raises(TypeError, match=text):
        client.put("m", {"a": {"b": wrong}}, device="host")
    assert client.list() == []


@pytest.mark.parametrize(
    "node",
    [
        '{"namedtuple":1}',
        '{"namedtuple":["a"]}',
        '{"namedtuple":[1,[]]}',
        '{"namedtuple":["a",[["b"]]]}',
        '{"namedtuple":["a b",[]]}',
        '{"namedtuple":["class",[]]}',
        '{"namedtuple":["a",[["b;c",{"value":1}]]]}',
        '{"namedtuple":["a",[["_b",{"value":1}]]]}',
        '{"namedtuple":["a",[["b",{"value":1}],["b",{"value":1}]]]}',
        '{"namedtuple":["a",[["b",{"value":[]}]]]}',
    ],
)
def test_a_hostile_namedtuple_is_refused(client, node):
    table = json.dumps({"__metadata__": {"gpushm.tree": node}})
    segment = client.create("m", gpushm.tensors_size(table), device="host", lifetime="persistent")
    segment.publish_tensors(table)
    with pytest.raises(gpushm.ProtocolError):
        client.get("m")
