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
