# SPDX-License-Identifier: Apache-2.0
"""put and get of structures of arrays."""

from __future__ import annotations

import gc
import json
import math

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


def test_numpy(client):
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


def test_arrays_and_jax(client):
    jax = pytest.importorskip("jax")
    client.put("m", {"w": jax.numpy.ones((4, 4)), "n": [1]}, device="host")
    assert client.get("m")["w"].shape == (4, 4)
    result = client.get("m", "jax")
    assert isinstance(result["w"], jax.Array)
    assert float(result["w"].sum()) == 16


def test_torch(client):
    torch = pytest.importorskip("torch")
    client.put("m", {"w": torch.ones(4, 4, dtype=torch.bfloat16)}, device="host")
    result = client.get("m", "torch")
    assert result["w"].dtype == torch.bfloat16
    assert float(result["w"].sum()) == 16


def test_another_process_waits_for_it(client, start):
    child = start("""
        import gpushm, sys
        result = gpushm.connect(sys.argv[1]).get('m', 'numpy', timeout=20)
        print({key: value.tolist() for key, value in result.items()}, flush=True)
        """)
    client.put("m", {"a": np.arange(3), "b": np.ones(1)}, device="host")
    assert child.succeed() == "{'a': [0, 1, 2], 'b': [1.0]}\n"


def test_a_writer_that_is_killed(client, start):
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
    segment = client.put("m", tree, device="host")
    assert len(segment.metadata) < 200
    assert "table" in json.loads(segment.metadata)
    assert same(tree, client.get("m", "numpy"))


def test_what_cannot_be_put_leaves_nothing(client):
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


@pytest.mark.parametrize(
    "metadata",
    [
        b"",
        b"text",
        b"[]",
        b"[" * 5000,
        b'{"gpushm":"other"}',
        b'{"gpushm":"tree"}',
        b'{"gpushm":"tree","version":2}',
        b'{"gpushm":"tree","version":1}',
        b'{"gpushm":"tree","version":1,"table":[0,100]}',
        b'{"gpushm":"tree","version":1,"table":[-1,1]}',
        b'{"gpushm":"tree","version":1,"table":"ab"}',
        b'{"gpushm":"tree","version":1,"tensors":[],"tree":{"array":0}}',
        b'{"gpushm":"tree","version":1,"tensors":[],"tree":{"array":-1}}',
        b'{"gpushm":"tree","version":1,"tensors":[],"tree":{"a":1,"b":2}}',
        b'{"gpushm":"tree","version":1,"tensors":[],"tree":{}}',
        b'{"gpushm":"tree","version":1,"tensors":[],"tree":{"dict":[[[],{"value":1}]]}}',
        b'{"gpushm":"tree","version":1,"tensors":[{"dtype":"int8","shape":[65],"offset":0}],"tree":{"value":1}}',
        b'{"gpushm":"tree","version":1,"tensors":[{"dtype":"int8","shape":[1],"offset":64}],"tree":{"value":1}}',
        b'{"gpushm":"tree","version":1,"tensors":[{"dtype":"int8","shape":[1],"offset":-1}],"tree":{"value":1}}',
        b'{"gpushm":"tree","version":1,"tensors":[{"dtype":"int8","shape":[-1],"offset":0}],"tree":{"value":1}}',
        b'{"gpushm":"tree","version":1,"tensors":[{"dtype":"no","shape":[1],"offset":0}],"tree":{"value":1}}',
        b'{"gpushm":"tree","version":1,"tensors":[{"dtype":5,"shape":null,"offset":1e300}],"tree":{"value":1}}',
    ],
)
def test_a_segment_that_was_not_put(client, metadata):
    client.create("m", 64, device="host", lifetime="persistent").publish(metadata)
    for framework in (None, "numpy"):
        with pytest.raises(ValueError):  # noqa: PT011
            client.get("m", framework)
    assert client.stat("m").leases <= 2


def test_an_unknown_framework(client):
    with pytest.raises(ValueError, match='framework is "numpy", "jax", "torch", "cupy", or None'):
        client.get("m", "tensorflow")
