# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own sharing of CUDA tensors between two processes, over a Unix socket in a shared
volume. Nothing of gpushm.

    torch_pair.py first|second DIR [--few]

torch.multiprocessing pickles each tensor (ForkingPickler), as its queues do. Steps, each in both
directions:

1. many tensors of several types, sizes and strides, some of one storage: every element is compared,
   changed in place by the receiver, and compared by the sender;
2. a tensor whose data is still to be written by a busy stream when it is sent: the receiver must
   see the final data;
3. what the sender still holds after the receiver dropped everything (the counters of PyTorch are in
   its /dev/shm).

Exit status 0: all data was right. The RESULT line has the rest.
"""

import gc
import io
import json
import os
import pickle
import socket
import struct
import sys
import time
from multiprocessing.reduction import ForkingPickler

import torch
import torch.multiprocessing  # registers the reductions with ForkingPickler

PATIENCE = (
    float(os.environ.get("UNMODIFIED_PATIENCE", "20")) + 15
)  # imports of PyTorch by two containers at once
MiB = 1 << 20


class Line:
    """Frames over a socket: a length and its bytes."""

    def __init__(self, connection):
        self.connection = connection
        connection.settimeout(PATIENCE)

    def send(self, data):
        self.connection.sendall(struct.pack("<Q", len(data)) + data)

    def receive(self):
        size = struct.unpack("<Q", self.exactly(8))[0]
        return self.exactly(size)

    def exactly(self, size):
        parts = io.BytesIO()
        while parts.tell() < size:
            piece = self.connection.recv(min(size - parts.tell(), MiB))
            if not piece:
                raise EOFError("the peer has gone")
            parts.write(piece)
        return parts.getvalue()


def connect(role, path):
    if role == "first":
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path + ".part")
            os.chmod(path + ".part", 0o777)
            listener.listen(1)
            listener.settimeout(PATIENCE)
            os.rename(path + ".part", path)
            return Line(listener.accept()[0])
    until = time.monotonic() + PATIENCE
    while True:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(path)
            return Line(connection)
        except OSError:
            connection.close()
            if time.monotonic() > until:
                raise
            time.sleep(0.01)


def dumps(value):
    return bytes(ForkingPickler.dumps(value))


def make_tensors(count, seed):
    """Tensors of all sorts. The same on both sides, to compare with."""
    generator = torch.Generator(device="cuda").manual_seed(seed)
    types = [torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8]
    made = []
    base = torch.arange(3 * MiB, device="cuda", dtype=torch.float32) + seed
    for i in range(count):
        kind = types[i % len(types)]
        size = [1, 10, 1000, 4096, 100_003, 2 * MiB + 7][i % 6]
        if i % 7 == 3:
            made.append(base[i * 1000 : i * 1000 + size % 2_000_000])  # a slice of one storage
        elif i % 7 == 5:
            whole = torch.randint(0, 100, (64, 128), device="cuda", generator=generator).to(kind)
            made.append(whole.t()[3:17])  # neither contiguous nor from its storage's beginning
        else:
            made.append(torch.randint(0, 100, (size,), device="cuda", generator=generator).to(kind))
    # expandable segments: more than one chunk of 20 MiB
    made.append(torch.full((96 * MiB // 4,), float(seed), device="cuda"))
    return made


def send_many(line, count, seed, report):
    mine = make_tensors(count, seed)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    line.send(dumps(mine))
    report["export_us_a_tensor"] = round((time.perf_counter() - begin) / len(mine) * 1e6, 1)
    answer = json.loads(line.receive())
    if answer.get("error"):
        raise RuntimeError("the peer: " + answer["error"])
    torch.cuda.synchronize()
    expected = (
        [changed(tensor) for tensor in make_tensors(count, seed)] if answer["wrong"] == 0 else []
    )
    # Slices of one storage overlap: both sides change them in the same order.
    wrong = (
        sum(not torch.equal(a, b) for a, b in zip(mine, expected, strict=True))
        if expected
        else len(mine)
    )
    report.update(
        tensors=len(mine),
        wrong_at_receiver=answer["wrong"],
        wrong_after_receivers_changes=wrong,
        open_us_a_tensor=answer["open_us_a_tensor"],
    )
    del mine
    line.send(b"checked")
    return answer["wrong"] == 0 and wrong == 0


def changed(tensor):
    return tensor.add_(1)


def send_failure(line, failure):
    line.send(
        json.dumps({"error": f"{type(failure).__name__}: {str(failure).splitlines()[0]}"}).encode()
    )


def receive_many(line, count, seed, received):
    data = line.receive()
    try:
        begin = time.perf_counter()
        got = pickle.loads(data)
        spent = time.perf_counter() - begin
        expected = make_tensors(count, seed)
        wrong = sum(not torch.equal(a, b) for a, b in zip(got, expected, strict=False)) + abs(
            len(got) - len(expected)
        )
        if wrong == 0:
            for tensor in got:
                changed(tensor)
        torch.cuda.synchronize()
    except Exception as failure:
        send_failure(line, failure)
        raise
    line.send(
        json.dumps({"wrong": wrong, "open_us_a_tensor": round(spent / len(got) * 1e6, 1)}).encode()
    )
    line.receive()
    received.append(len(got))
    del got, expected
    return wrong == 0


def send_busy(line, report):
    """The stream is busy for about half a second when the tensor is sent."""
    stream = torch.cuda.Stream()
    tensor = torch.zeros(4 * MiB, device="cuda")
    torch.cuda.synchronize()
    good = True
    for value in (7.0, 8.0):  # the second time the receiver has it open already
        with torch.cuda.stream(stream):
            torch.cuda._sleep(900_000_000)
            tensor.fill_(value)
            begin = time.perf_counter()
            line.send(dumps(tensor))
            spent = time.perf_counter() - begin
            busy = not stream.query()
        answer = json.loads(line.receive())
        if answer.get("error"):
            raise RuntimeError("the peer: " + answer["error"])
        report.setdefault("busy", []).append(
            {"send_ms": round(spent * 1e3, 2), "stream_busy_after_send": busy, **answer}
        )
        good = good and answer["wrong"] == 0
    return good


def receive_busy(line):
    good = True
    for value in (7.0, 8.0):
        data = line.receive()
        try:
            begin = time.perf_counter()
            got = pickle.loads(data)
            opened = time.perf_counter()
            wrong = int((got != value).sum().item())
            read = time.perf_counter()
        except Exception as failure:
            send_failure(line, failure)
            raise
        line.send(
            json.dumps(
                {
                    "wrong": wrong,
                    "open_ms": round((opened - begin) * 1e3, 2),
                    "wait_and_read_ms": round((read - opened) * 1e3, 2),
                }
            ).encode()
        )
        good = good and wrong == 0
        del got
    return good


def held(report):
    """What PyTorch keeps because it was sent, and what it can free once the receiver has dropped it."""
    gc.collect()
    before = torch.cuda.memory_allocated()
    torch.cuda.ipc_collect()
    gc.collect()
    report["allocated_mib_after_all_was_dropped"] = [
        round(before / MiB, 1),
        round(torch.cuda.memory_allocated() / MiB, 1),
    ]


def main():
    role, folder = sys.argv[1:3]
    count = 20 if "--few" in sys.argv else 120
    report = {"pid": os.getpid(), "uid": os.getuid(), "torch": torch.__version__, "ok": False}
    line = connect(role, folder + "/socket")
    received = []
    try:
        torch.zeros(1, device="cuda")
        line.send(b"ready")
        line.receive()
        if role == "first":
            steps = [
                send_many(line, count, 3, report),
                receive_many(line, count, 4, received),
                send_busy(line, report),
                receive_busy(line),
            ]
        else:
            steps = [
                receive_many(line, count, 3, received),
                send_many(line, count, 4, report),
                receive_busy(line),
                send_busy(line, report),
            ]
        report["ok"] = all(steps)
        report["steps"] = steps
        gc.collect()
        torch.cuda.synchronize()
        line.send(b"dropped")
        line.receive()
        held(report)
        line.send(b"end")
        line.receive()
    except Exception as failure:
        report["error"] = f"{type(failure).__name__}: {(str(failure) or '-').splitlines()[0]}"
    print("RESULT " + json.dumps(report), flush=True)
    os._exit(
        0 if report["ok"] else 1
    )  # not after a peer that has gone: destructors of imported memory may wait


if __name__ == "__main__":
    main()
