# SPDX-License-Identifier: Apache-2.0
"""JAX on the CPU, in both directions."""

from __future__ import annotations

import gc
import os

import numpy as np
import pytest

import gpushm

from support import wait_until

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # also where there is a GPU
jax = pytest.importorskip("jax")
jnp = jax.numpy


@pytest.mark.parametrize(
    "name", ["float32", "bfloat16", "int8", "bool", "complex64", "float8_e4m3fn"]
)
def test_jax_has_the_same_elements(client, name):
    segment = client.create("s", 4096, device="host")
    array = segment.view(name, (4, 8))
    expected = jnp.arange(32).reshape(4, 8).astype(name)
    array.copy_from(expected)
    result = jax.dlpack.from_dlpack(array)
    assert (result.dtype, result.shape) == (expected.dtype, (4, 8))
    assert result.unsafe_buffer_pointer() == array.data_ptr
    assert (result == expected).all()


def test_gpushm_has_the_same_elements():
    source = jnp.arange(12, dtype="float32").reshape(3, 4)
    array = gpushm.from_dlpack(source)
    assert array.data_ptr == source.unsafe_buffer_pointer()
    assert array.tobytes() == np.asarray(source).tobytes()


def test_the_lease_lives_as_long_as_the_array_of_jax(client, broker):
    client.create("s", 4096, device="host", lifetime="persistent").publish()
    with gpushm.connect(broker.socket, cache_bytes=0) as other:
        result = jax.dlpack.from_dlpack(other.open("s").view("float32", (8, 8)).unflagged())
        assert client.stat("s").leases == 1
        assert float(result.sum()) == 0
        result.delete()
        del result
        gc.collect()
        wait_until(lambda: client.stat("s").leases == 0, "the lease ends")


def test_jax_computes_on_shared_memory_of_another_process(client, start):
    child = start("""
        import gpushm, numpy, sys
        segment = gpushm.connect(sys.argv[1]).create('w', 4096, device='host', lifetime='persistent')
        numpy.from_dlpack(segment.view('float32'))[:] = 2
        segment.publish()
        """)
    child.succeed()
    weights = jax.dlpack.from_dlpack(client.open("w").view("float32", (32, 32)).unflagged())
    product = jax.jit(lambda w: w @ w)(weights)
    assert (product == 128).all()
