# SPDX-License-Identifier: Apache-2.0
"""As program.c, by ctypes: the commands that exchange memory and events."""

import ctypes
import sys

cuda = ctypes.CDLL("libcuda.so.1")


class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * 64)]


cuda.cuIpcOpenMemHandle_v2.argtypes = [ctypes.POINTER(ctypes.c_uint64), Handle, ctypes.c_uint]
cuda.cuIpcOpenEventHandle.argtypes = [ctypes.POINTER(ctypes.c_void_p), Handle]
cuda.cuIpcGetMemHandle.argtypes = [ctypes.POINTER(Handle), ctypes.c_uint64]
cuda.cuIpcGetEventHandle.argtypes = [ctypes.POINTER(Handle), ctypes.c_void_p]
cuda.cuIpcCloseMemHandle.argtypes = [ctypes.c_uint64]
cuda.cuMemsetD32Async.argtypes = [ctypes.c_uint64, ctypes.c_uint, ctypes.c_size_t, ctypes.c_void_p]
cuda.cuMemAlloc_v2.argtypes = [ctypes.POINTER(ctypes.c_uint64), ctypes.c_size_t]
cuda.cuMemcpyDtoH_v2.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t]
cuda.cuEventRecord.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
cuda.cuStreamWaitEvent.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint]
cuda.cuStreamSynchronize.argtypes = [ctypes.c_void_p]
cuda.cuStreamWaitValue64_v2.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint]
cuda.cuMemHostRegister_v2.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint]
cuda.cuMemHostGetDevicePointer_v2.argtypes = [ctypes.POINTER(ctypes.c_uint64), ctypes.c_void_p, ctypes.c_uint]

memory = {}
events = {}
gates = []
stream = ctypes.c_void_p()


def from_hex(text):
    return Handle((ctypes.c_ubyte * 64)(*bytes.fromhex(text)))


def start():
    device, context = ctypes.c_int(), ctypes.c_void_p()
    return (
        cuda.cuInit(0)
        or cuda.cuDeviceGet(ctypes.byref(device), 0)
        or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
        or cuda.cuCtxSetCurrent(context)
        or cuda.cuStreamCreate(ctypes.byref(stream), 1)
    )


def get_handle(call, source):
    handle = Handle()
    result = call(ctypes.byref(handle), source)
    return result, bytes(handle.bytes).hex()


def block(path):
    import mmap

    with open(path, "r+b") as file:
        gates.append(mmap.mmap(file.fileno(), 4096))
    address = ctypes.addressof(ctypes.c_char.from_buffer(gates[-1]))
    pointer = ctypes.c_uint64()
    return (
        cuda.cuMemHostRegister_v2(address, 4096, 0)
        or cuda.cuMemHostGetDevicePointer_v2(ctypes.byref(pointer), address, 0)
        or cuda.cuStreamWaitValue64_v2(stream, pointer, 1, 0)
    )


def check(pointer, size, value):
    copy = (ctypes.c_uint32 * (size // 4))()
    result = cuda.cuMemcpyDtoH_v2(copy, pointer, size)
    return result, sum(word != value for word in copy)


def run(command, slot, arguments):
    if command == "alloc":
        pointer = ctypes.c_uint64()
        result = cuda.cuMemAlloc_v2(ctypes.byref(pointer), int(arguments[0]))
        memory[slot] = (pointer, int(arguments[0]))
        return result, ""
    if command == "fill":
        pointer, size = memory[slot]
        return cuda.cuMemsetD32Async(pointer, int(arguments[0]), size // 4, stream), ""
    if command == "check":
        return check(*memory[slot], int(arguments[0]))
    if command == "handle":
        return get_handle(cuda.cuIpcGetMemHandle, memory[slot][0])
    if command == "open":
        pointer = ctypes.c_uint64()
        result = cuda.cuIpcOpenMemHandle_v2(ctypes.byref(pointer), from_hex(arguments[0]), 1)
        memory[slot] = (pointer, int(arguments[1]))
        return result, ""
    if command == "close":
        return cuda.cuIpcCloseMemHandle(memory[slot][0]), ""
    if command == "event":
        events[slot] = ctypes.c_void_p()
        return cuda.cuEventCreate(ctypes.byref(events[slot]), 4 | 2), ""
    if command == "event-handle":
        return get_handle(cuda.cuIpcGetEventHandle, events[slot])
    if command == "event-open":
        events[slot] = ctypes.c_void_p()
        return cuda.cuIpcOpenEventHandle(ctypes.byref(events[slot]), from_hex(arguments[0])), ""
    if command == "record":
        return cuda.cuEventRecord(events[slot], stream), ""
    if command == "wait":
        return cuda.cuStreamWaitEvent(stream, events[slot], 0), ""
    if command == "block":
        return block(arguments[0]), ""
    if command == "sync":
        return cuda.cuStreamSynchronize(stream), ""
    return -1, ""


def main():
    print("started", start(), flush=True)
    for line in sys.stdin:
        command, *rest = line.split()
        if command == "exit":
            break
        slot = int(rest[0]) if rest else 0
        print(command, *run(command, slot, rest[1:]), flush=True)


main()
