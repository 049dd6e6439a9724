# SPDX-License-Identifier: Apache-2.0
"""put and get of structures of arrays."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import json
import math
import mmap
import os
import struct

import ml_dtypes
import numpy as np
import pytest

import gpushm

from support import wait_until

rng = np.random.default_rng(18)


def state() -> dict:
    tied = rng.standard_normal((16, 8)).astype("float32")
    return {
        "embed.weight": tied,
        "lm_head.weight": tied,
        "layers": [
            {
                "q": rng.standard_normal((8, 8)).astype(ml_dtypes.bfloat16),
                "scale": np.array(2.5),
            },
            {"q": rng.integers(0, 255, 100, dtype="uint8"), "empty": np.zeros((0, 3), "int64")},
        ],
        "shape": (3, 4.5, "text", None, True),
        7: np.arange(12).reshape(3, 4).T,
    }


def same(left: object, right: object) -> bool:
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return type(left) is type(right) and all(map(same, left, right))
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and left.shape == right.shape and (left == right).all()
    return type(left) is type(right) and left == right


def test_structures_of_numpy_arrays_are_got_without_a_copy(client):
    tree = state()
    segment = client.put("w/model", tree, device="host")
    assert (segment.lifetime, segment.state) == ("persistent", "live")
    result = client.get("w/model", "numpy")
    assert same(tree, result)
    # Tied weights are one tensor, without a copy, mapped for reading only, aligned.
    assert result["embed.weight"].ctypes.data == result["lm_head.weight"].ctypes.data
    assert not result["embed.weight"].flags.writeable
    for each in (result["embed.weight"], result["layers"][0]["q"], result[7]):
        assert each.ctypes.data % 256 == 0
    client.get("w/model", "numpy", access="read-write")[7][0, 0] = 42
    assert result[7][0, 0] == 42


def test_structures_of_jax_arrays_are_got_as_arrays_of_jax(client):
    jax = pytest.importorskip("jax")
    client.put("m", {"w": jax.numpy.ones((4, 4)), "n": [1]}, device="host")
    assert client.get("m")["w"].shape == (4, 4)
    result = client.get("m", "jax")
    assert isinstance(result["w"], jax.Array)
    assert float(result["w"].sum()) == 16


def test_structures_of_tensors_are_got_as_tensors_of_pytorch(client):
    torch = pytest.importorskip("torch")
    client.put("m", {"w": torch.ones(4, 4, dtype=torch.bfloat16)}, device="host")
    result = client.get("m", "torch")
    assert result["w"].dtype == torch.bfloat16
    assert float(result["w"].sum()) == 16


def test_another_process_waits_for_a_structure(client, start):
    child = start("""
        import gpushm, sys
        result = gpushm.connect(sys.argv[1]).get('m', 'numpy', timeout=20)
        print({key: value.tolist() for key, value in result.items()}, flush=True)
        """)
    client.put("m", {"a": np.arange(3), "b": np.ones(1)}, device="host")
    assert child.succeed() == "{'a': [0, 1, 2], 'b': [1.0]}\n"


def test_a_killed_writer_leaves_no_part_of_a_structure(client, start):
    child = start("""
        import gpushm, numpy, sys
        client = gpushm.connect(sys.argv[1])
        class Slow:
            array = numpy.arange(4)
            def __dlpack_device__(self): return (1, 0)
            def __dlpack__(self, **options):
                print('asked', flush=True)
                sys.stdin.readline()
                return self.array.__dlpack__(**options)
        client.put('half', {'a': numpy.ones(1 << 20), 'b': Slow()}, device='host')
        print('published', flush=True)
        sys.stdin.readline()
        """)
    assert child.line() == "asked"
    child.kill()
    with pytest.raises(gpushm.NoSuchSegmentError):
        client.get("half")
    child = start("""
        import gpushm, numpy, sys
        gpushm.connect(sys.argv[1]).put('whole', {'b': numpy.arange(4)}, device='host')
        print('published', flush=True)
        sys.stdin.readline()
        """)
    assert child.line() == "published"
    child.kill()
    assert client.get("whole", "numpy")["b"].tolist() == [0, 1, 2, 3]
    with pytest.raises(gpushm.AlreadyExistsError):
        client.put("whole", {}, device="host")


def test_the_lease_lives_as_long_as_one_array(client, broker):
    client.put("m", {"a": np.arange(3), "b": np.ones(1)}, device="host").close()
    with gpushm.connect(broker.socket, cache_bytes=0) as other:
        array = other.get("m", "numpy")["b"]
        gc.collect()
        assert client.stat("m").leases == 1
        assert array[0] == 1
        del array
        gc.collect()
        wait_until(lambda: client.stat("m").leases == 0, "the lease ends")


def test_many_tensors_have_their_table_in_the_segment(client):
    tree = {f"model.layers.{i}.mlp.gate_proj.weight": np.full(8, i) for i in range(2000)}
    client.put("m", tree, device="host")
    assert same(tree, client.get("m", "numpy"))


def test_the_table_is_that_of_a_model(client):
    tied = np.ones((2, 3), "float32")
    segment = client.put("flat", {"a": tied, "c": tied, "b": np.zeros(4, "int8")}, device="host")
    table = json.loads(segment.tensor_table())
    assert table == {
        "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "b": {"dtype": "I8", "shape": [4], "data_offsets": [256, 260]},
        "c": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
    }
    result = client.get("flat", "numpy")
    assert list(result) == ["a", "c", "b"]
    assert result["a"] is result["c"]
    # A table has the order of places: another one is that of the structure.
    client.put("order", {"a": tied, "b": np.zeros(4, "int8"), "c": tied}, device="host")
    result = client.get("order", "numpy")
    assert list(result) == ["a", "b", "c"]
    assert result["a"] is result["c"]
    # Everything else is a structure beside the table: two names that would be the same, a scalar.
    tree = {"a.b": tied, "a": {"b": np.zeros(1)}, "__metadata__": np.ones(2), "n": 1}
    segment = client.put("deep", tree, device="host")
    assert list(json.loads(segment.tensor_table())) == [
        "__metadata__", "a.b", "a.b~2", "__metadata__~2",
    ]  # fmt: skip
    assert same(tree, client.get("deep", "numpy"))
    for name, tree in [("none", {}), ("array", np.arange(3)), ("list", [np.arange(3)]), ("n", 5)]:
        client.put(name, tree, device="host")
        assert same(tree, client.get(name, "numpy"))


@pytest.mark.parametrize(
    "dtype",
    [
        *["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"],
        *["float16", "float32", "float64", "complex64", "complex128", "bfloat16"],
        *["float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz"],
        *["float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"],
    ],
)
def test_each_type_of_numpy_is_put_and_got_unchanged(client, dtype):
    kind = np.dtype(getattr(ml_dtypes, dtype, None) or dtype)
    tree = {"w": rng.integers(0, 255, 24 * kind.itemsize, dtype="uint8").view(kind)}
    if dtype == "bool":
        tree = {"w": np.arange(24) % 3 == 0}
    client.put("m", {"w": tree["w"].reshape(2, 3, 4)}, device="host")
    result = client.get("m", "numpy")["w"]
    assert (result.dtype, result.shape) == (kind, (2, 3, 4))
    assert result.tobytes() == tree["w"].tobytes()


class Packed:
    """What PyTorch exports for two 4-bit floats in each byte."""

    def __init__(self, array: gpushm.Array) -> None:
        self.array = array.view("float4_e2m1fn_x2")

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return (1, 0)


def test_elements_of_four_bits_are_put_and_got_unchanged(client):
    bytes_of = np.arange(24, dtype="uint8").reshape(2, 12)
    source = Packed(gpushm.from_dlpack(bytes_of))
    segment = client.put("m", {"w": source, "v": Packed(gpushm.from_dlpack(bytes_of[0, 0:1]))},
                         device="host")  # fmt: skip
    entry = json.loads(segment.tensor_table())["w"]
    assert (entry["dtype"], entry["shape"]) == ("F4", [2, 24])
    result = client.get("m")["w"]
    assert (result.dtype, result.shape) == ("float4_e2m1fn_x2", (2, 12))
    assert result.tobytes() == bytes_of.tobytes()


def test_a_refused_put_leaves_no_segment(client):
    for wrong, error, text in [
        ({"a": object()}, TypeError, "has no __dlpack__"),
        ({1.5: np.ones(1)}, TypeError, "is not a str or an int"),
        ({"a": np.array(["text"])}, TypeError, "gpushm has no dtype str128"),
        ({"a": math.nan}, ValueError, "not JSON compliant"),
        ({"a": np.ones(4, ml_dtypes.int4)}, TypeError, "gpushm has no dtype int4"),
    ]:
        with pytest.raises(error, match=text):
            client.put("m", wrong, device="host")
        assert client.list() == []
    with pytest.raises(gpushm.NoSuchSegmentError):
        client.get("m")


@pytest.mark.parametrize("metadata", [b"", b"text", b"[]", b"[" * 5000, b'{"gpushm":"tree"}'])
def test_a_segment_without_tensors_is_refused(client, metadata):
    client.create("m", 64, device="host", lifetime="persistent").publish(metadata)
    for framework in (None, "numpy"):
        with pytest.raises(gpushm.InvalidArgumentError):
            client.get("m", framework)
    assert client.stat("m").leases <= 2


@pytest.mark.parametrize(
    "tree",
    [
        "",
        "text",
        "[" * 100000,
        '{"list":[' * 5000 + '{"value":1}' + "]}" * 5000,
        "1" * 5000,
        "[]",
        "{}",
        '{"a":1,"b":2}',
        '{"other":[]}',
        '{"array":"no"}',
        '{"array":0}',
        '{"array":["w"]}',
        '{"array":{"w":1}}',
        '{"array":"__metadata__"}',
        '{"value":[]}',
        '{"value":{}}',
        '{"list":1}',
        '{"list":"ab"}',
        '{"list":{"array":"w"}}',
        '{"dict":{}}',
        '{"dict":[["a"]]}',
        '{"dict":["ab"]}',
        '{"dict":[[[],{"value":1}]]}',
        '{"dict":[[null,{"value":1}]]}',
        '{"dict":[[1.5,{"value":1}]]}',
    ],
)
def test_a_hostile_structure_is_refused(client, tree):
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    table = json.dumps({"__metadata__": {"gpushm.tree": tree}, "w": entry})
    segment = client.create("m", gpushm.tensors_size(table), device="host", lifetime="persistent")
    segment.publish_tensors(table)
    for framework in (None, "numpy"):
        with pytest.raises(gpushm.ProtocolError):
            client.get("m", framework)
    # The tensors are good.
    assert gpushm.safe_open("m", "numpy", client=client).get_tensor("w").shape == (2,)


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [2], "data_offsets": [0, 9]},
        {"dtype": "F32", "shape": [2], "data_offsets": [128, 136]},
        {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]},
        {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], "strides": [-1]},
        {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], "strides": [1, 1]},
        {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], "strides": [1 << 62]},
        {"dtype": "F32", "shape": [1 << 62, 4], "data_offsets": [0, 0]},
        {"dtype": "F32", "shape": "2", "data_offsets": [0, 8]},
        {"dtype": "X32", "shape": [2], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], "framework_dtype": 5},
        {"dtype": "F4", "shape": [3], "data_offsets": [0, 2]},
        {"shape": [2], "data_offsets": [0, 8]},
        [],
        5,
    ],
)
def test_an_invalid_table_is_refused_when_it_is_published_and_read(client, entry):
    table = json.dumps({"w": entry})
    with pytest.raises(gpushm.InvalidArgumentError):
        gpushm.tensors_size(table)
    segment = client.create("m", 4096, device="host")
    with pytest.raises(gpushm.InvalidArgumentError):
        segment.publish_tensors(table)
    # A hostile writer does not ask: its table is behind the library's back.
    good = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}})
    segment = client.create("n", gpushm.tensors_size(good), device="host", lifetime="persistent")
    segment.publish_tensors(good)
    place = json.loads(segment.metadata)["table_offset"]
    segment.write(b"}", place)
    with pytest.raises(gpushm.ProtocolError):
        client.get("n")


class Table:
    """A reader of tables of its own, as docs/tensors.md specifies them."""

    DTYPES = (
        *["BOOL", "F4", "F6_E2M3", "F6_E3M2", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0"],
        *["F8_E4M3FNUZ", "F8_E5M2FNUZ", "I16", "U16", "F16", "BF16", "I32", "U32", "F32", "C64"],
        *["F64", "I64", "U64", "C32", "C128"],
    )

    def __init__(self, segment: gpushm.Segment) -> None:
        place = json.loads(segment.metadata)
        assert place["format"] == "gpushm-tensors/2"
        self.bytes = segment.read(place["table_offset"], place["table_bytes"])
        magic, version, tensors, metadata, numbers, text_bytes, zero = self.take("<8s6I", 0)
        assert (magic, version, zero) == (b"gpushmtb", 2, 0)
        self.numbers = 32 + 64 * tensors + 16 * metadata
        names = self.numbers + 8 * numbers
        self.texts = names + -(-4 * tensors // 8) * 8
        assert len(self.bytes) == self.texts + -(-text_bytes // 8) * 8
        self.entries = [self.entry(32 + 64 * i) for i in range(tensors)]
        by_name = self.take(f"<{tensors}I", names)
        assert [self.entries[i][0] for i in by_name] == sorted(name for name, _ in self.entries)
        records = [self.take("<4I", 32 + 64 * tensors + 16 * i) for i in range(metadata)]
        self.metadata = {self.text(*each[:2]): self.text(*each[2:]) for each in records}

    def take(self, form: str, at: int):
        return struct.unpack_from(form, self.bytes, at)

    def text(self, begin: int, size: int) -> str:
        return self.bytes[self.texts + begin : self.texts + begin + size].decode()

    def entry(self, at: int):
        begin, end, hash_of, *texts, first, rank, dtype, flags, zero = self.take(
            "<QQ16s4IIHBBQ", at
        )
        assert zero == 0
        numbers = list(self.take(f"<{rank * (1 + flags)}Q", self.numbers + 8 * first))
        entry = {"dtype": self.DTYPES[dtype], "shape": numbers[:rank], "data_offsets": [begin, end]}
        if flags:
            entry["strides"] = numbers[rank:]
        if hash_of != bytes(16):
            entry["hash"] = hash_of.decode()
        if texts[3]:
            entry["framework_dtype"] = self.text(*texts[2:])
        return self.text(*texts[:2]), entry


def test_the_table_is_as_it_is_specified(client):
    sizes = [8, 4, 6, 6, *[8] * 7, *[16] * 4, *[32] * 3, *[64] * 4, 32, 128]
    table = {
        "__metadata__": {"format": "pt", "by": "a test \u00e9"},
        "scalar": {"dtype": "C128", "shape": [], "data_offsets": [0, 16], "hash": "0123456789abcdef"},
        "tied": {"dtype": "F32", "shape": [2, 3], "data_offsets": [256, 280], "strides": [1, 2]},
        "also \u00e9": {"dtype": "F32", "shape": [2, 3], "data_offsets": [256, 280]},
        "x": {"dtype": "U8", "shape": [4], "data_offsets": [512, 516], "framework_dtype": "bits8"},
    } | {
        f"w.{i}": {"dtype": kind, "shape": [8], "data_offsets": [at, at + size]}
        for i, (kind, size, at) in enumerate(
            zip(Table.DTYPES, sizes, range(1024, 1024 + 256 * len(sizes), 256), strict=True)
        )
    }  # fmt: skip
    text = json.dumps(table)
    segment = client.create("m", gpushm.tensors_size(text), device="host")
    segment.publish_tensors(text)
    read = Table(segment)
    metadata = table.pop("__metadata__")
    assert dict(read.entries) == table
    assert [name for name, _ in read.entries] == list(table)
    assert read.metadata == metadata
    assert json.loads(segment.tensor_table()) == {"__metadata__": metadata} | table
    with gpushm.safe_open("m", client=client) as opened:
        assert opened.offset_keys() == list(table)
        assert opened.keys() == sorted(table)
        assert opened.metadata() == metadata
        for name in ("also", "", "tied\0", "\ud800", 5):
            with pytest.raises(KeyError) as caught:
                opened.get_tensor(name)
            assert caught.value.args == (name,)
        assert opened.get_slice("tied").get_shape() == [2, 3]
        assert opened.get_tensor("tied").strides == (1, 2)


def test_a_table_of_another_version_is_refused(client):
    entry = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}
    table = json.dumps({"w": entry})
    segment = client.create("m", gpushm.tensors_size(table), device="host", lifetime="persistent")
    segment.publish_tensors(table)
    old = segment.metadata.replace(b"gpushm-tensors/2", b"gpushm-tensors/1")
    other = client.create("n", segment.size, device="host", lifetime="persistent")
    other.write(segment.read())
    other.publish(old)
    for read in (lambda: gpushm.safe_open("n", client=client), lambda: client.get("n"),
                 other.tensor_table):  # fmt: skip
        with pytest.raises(gpushm.UnsupportedVersionError, match="gpushm-tensors/1"):
            read()


@pytest.mark.parametrize(
    "extra",
    [
        {"shape": [0, 1 << 62, 1 << 62], "data_offsets": [0, 0]},
        {"shape": [0, (1 << 64) - 1], "data_offsets": [0, 0]},
        {"shape": [0], "data_offsets": [0, 0], "strides": [-1]},
        {"shape": [2], "data_offsets": [0, 8], "framework_dtype": "float64"},
        {"shape": [2], "data_offsets": [0, 8], "framework_dtype": "\u0000 no such type"},
        {"shape": [2], "data_offsets": [0, 8], "other": [[[1]]]},
        {"shape": [2], "data_offsets": [0, 8], "segment": "x"},
        {"shape": [2], "data_offsets": [0, 8], "segment": 1 << 62},
        {"shape": [2], "data_offsets": [0, 4], "strides": [0]},
        {"dtype": "F6_E2M3", "shape": [4], "data_offsets": [0, 3]},
        {"dtype": "F4", "shape": [], "data_offsets": [0, 0]},
        {"dtype": "F4", "shape": [2, 1], "data_offsets": [0, 1]},
    ],
)
def test_tables_at_the_limit_are_refused_or_read_within_their_bytes(client, extra):
    table = json.dumps({"w": {"dtype": "F32"} | extra})
    try:
        size = gpushm.tensors_size(table)
    except gpushm.InvalidArgumentError:
        return
    client.create("m", size, device="host", lifetime="persistent").publish_tensors(table)
    try:
        array = client.get("m")["w"]
    except (gpushm.ProtocolError, TypeError):
        return
    assert array.dtype == "float32"
    assert len(array.tobytes()) == array.nbytes <= 8


def test_a_table_of_one_segment_names_no_other_one(client):
    """Only what `share` writes has numbers of segments; in a table they are unknown keys."""
    entry = {"dtype": "U8", "shape": [4], "data_offsets": [256, 260]}
    table = {"a": entry | {"segment": "x"}, "b": entry | {"data_offsets": [0, 4]}, "c": entry}
    text = json.dumps(table)
    segment = client.create("m", gpushm.tensors_size(text), device="host")
    segment.publish_tensors(text)
    with gpushm.safe_open("m", client=client) as opened:
        assert opened.offset_keys() == ["b", "a", "c"]
        assert sorted(opened.get_tensors()) == ["a", "b", "c"]


def test_an_unknown_framework_is_refused(client):
    with pytest.raises(ValueError, match='framework is "numpy", "jax", "torch", "cupy", or None'):
        client.get("m", "tensorflow")


# ---- structures of memory that exists ----


def memfd(size: int) -> np.ndarray:
    """Memory that can be shared."""
    file = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(file, size)
    fcntl.fcntl(
        file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    )
    return np.frombuffer(mmap.mmap(file, size), np.uint8)  # its descriptor stays open


def names(client) -> list[str]:
    return [each.name for each in client.list()]


def test_a_shared_structure_ends_also_without_its_names(client):
    """Whatever of it somebody has removed, or has put in its place."""
    for removed in (["m"], ["m/~0"], ["m", "m/~0", "m/~1"], []):
        shared = client.share("m", {"a": memfd(4096), "b": memfd(4096)})
        assert names(client) == ["m", "m/~0", "m/~1"]
        for each in removed:
            client.remove(each)
        shared.close()
        assert names(client) == []
        shared.close()
    shared = client.share("m", {"a": memfd(4096)})
    client.remove("m")
    with client.put("m", {"a": np.ones(1)}, device="host"):
        shared.close()
        assert names(client) == ["m"]
    client.remove("m")


def test_a_shared_structure_can_be_closed_after_the_end_of_its_broker(client, broker):
    shared = client.share("m", {"a": memfd(4096)})
    broker.kill()
    with contextlib.suppress(gpushm.Error):
        shared.close()
    assert shared.segments in ([], ["m/~0"])


def test_the_first_error_is_the_one_that_is_raised(client, broker):
    class Ending:
        """An array that cannot be read, because its broker ends."""

        array = np.arange(4)

        def __dlpack_device__(self):
            return (1, 0)

        def __dlpack__(self, **options):
            broker.kill()
            raise TypeError("the first one")

    with pytest.raises(TypeError, match="the first one"):
        client.share("m", {"a": memfd(4096), "b": Ending()})


def test_strides_that_cannot_be_shared_are_refused(client):
    for wrong in (memfd(4096)[::-1], np.frombuffer(memfd(4096), ">f4")):
        with pytest.raises(TypeError, match="at a: "):
            client.share("m", {"a": wrong})
    assert names(client) == []
