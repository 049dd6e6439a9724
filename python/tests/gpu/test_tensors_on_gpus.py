# SPDX-License-Identifier: Apache-2.0
"""Models and structures of tensors on GPUs."""

from __future__ import annotations

import json
import pickle
import struct
import time

import numpy as np
import pytest

import gpushm

from gpus import MIB, Foreign


def test_a_model_is_loaded_to_a_gpu(client, tmp_path, start, driver):
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


def test_a_load_does_not_wait_for_streams_of_its_process(client, driver, tmp_path):
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


def test_structures_of_host_arrays_are_put_on_a_gpu(client):
    tree = {"a": np.arange(100, dtype="float32"), "b": [np.ones((3, 3), "int8"), 5]}
    client.put("m", tree, device="0")
    result = client.get("m")
    assert result["a"].__dlpack_device__() == (2, 0)
    assert result["a"].tobytes() == tree["a"].tobytes()
    assert result["b"][0].shape == (3, 3)
    assert result["b"][1] == 5
    client.remove("m")


def test_tied_arrays_of_a_gpu_are_put_once(client, driver):
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


def test_structures_of_existing_arrays_are_shared_without_a_copy(client, start, driver):
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


def test_a_shared_structure_whose_segment_was_replaced_is_refused(client, driver):
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
def test_a_hostile_shared_structure_is_refused(client, content):
    segment = client.create("m", 64 + len(content), device="host")
    segment.write(content.ljust(segment.size))
    segment.publish(b'{"format":"gpushm-shared/1"}')
    for framework in (None, "numpy"):
        with pytest.raises(gpushm.ProtocolError):
            client.get("m", framework)
    assert client.stat("m").leases <= 2
