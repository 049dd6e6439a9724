# SPDX-License-Identifier: Apache-2.0
"""What the documents show, for mypy (scripts/python.sh lint): it is not run."""

from __future__ import annotations

import numpy as np

import gpushm


def errors(error: gpushm.Error) -> str:
    return f"{error.code.name} {error.cause} {error.next_step}"


def arrays(client: gpushm.Client) -> float:
    with client.create("x", 64, device="host", lifetime="persistent") as segment:
        values = np.from_dlpack(segment.view("float32", (4, 4)))
        values[:] = 1
        segment.publish(b"metadata")
    with client.open("x", timeout=5) as opened:
        return float(np.from_dlpack(opened.view("float32")).sum())


def values(client: gpushm.Client) -> gpushm.Array:
    counts = gpushm.array((2, 3), "int32", name="counts", device="cpu", replace=True)
    counts[0, 1:] = [7, 8]
    first: gpushm.Array = counts[0]
    print(first.numpy(), first.item(), counts.reshape(-1).shape, counts.torch(), counts.jax())
    client.put("w", {"a": np.ones(3)}, device="cuda:0", replace=True).close()
    gpushm.array(3, lifetime="forever")  # type: ignore[arg-type]
    with gpushm.shared_weights("w/llama", device=0, client=client):
        pass
    with gpushm.shared_weights("w/llama", read_only="no"):  # type: ignore[arg-type]
        pass
    return counts[1]


def words(client: gpushm.Client, event: gpushm.Event) -> None:
    client.open("x", access="rw")  # type: ignore[arg-type]
    client.create("x", 64, lifetime="forever")  # type: ignore[arg-type]
    client.consumer("c", mode="newest")  # type: ignore[arg-type]
    client.load_tensors("x.safetensors", "x", verify="none")  # type: ignore[arg-type]
    gpushm.load_safetensors("x.safetensors", "x", reading="mmap")  # type: ignore[arg-type]
    print(client.open("x").access == "write")  # type: ignore[comparison-overlap]
    print(event.kind == "peer_died")  # type: ignore[comparison-overlap]


def bytes_of_segments(client: gpushm.Client) -> None:
    segment = client.open("x", access="read-write")
    np.from_dlpack(segment)[:] = 1
    print(np.asarray(segment), memoryview(segment), gpushm.from_dlpack(segment))


async def waits(socket: str) -> None:
    client = await gpushm.connect_async(socket, timeout=5)
    segment = await client.open_async("w/one", timeout=30)
    segment.close()
    async for event in await client.subscribe_async("w/"):
        print(event.kind, event.name)
    frames = client.create_timeline("frames")
    frames.signal(5, stream=None)
    await frames.wait_async(5)


async def items(consumer: gpushm.Consumer) -> None:
    async for item in consumer:
        with item:
            print(item.number, item.metadata, np.from_dlpack(item.view("int32", 3)))


def brokers() -> None:
    with gpushm.Broker("/tmp/socket", quota_bytes=1 << 30) as broker:
        print(gpushm.connect(broker.socket), broker.statistics().open_failures["timed_out"])
    with gpushm.FileExport("/tmp/weights") as export:
        export.write(export.client.create("weights", 64))
