# SPDX-License-Identifier: Apache-2.0
"""What tests of GPUs share: CUDA by ctypes, as a framework uses it."""

from __future__ import annotations

import ctypes
import os

import numpy as np

FAKE = "GPUSHM_FAKE_GPU_ROOT" in os.environ
NOT_READY = 600
MIB = 1 << 20


class Driver:
    """What a framework does: its context is current, and it has streams."""

    def __init__(self) -> None:
        self.lib = ctypes.CDLL("libcuda.so.1")
        self.check("cuInit", 0)
        count = ctypes.c_int()
        self.check("cuDeviceGetCount", ctypes.byref(count))
        self.count = count.value
        self.use(0)

    def use(self, ordinal: int) -> None:
        context = ctypes.c_void_p()
        self.check("cuDevicePrimaryCtxRetain", ctypes.byref(context), ordinal)
        self.check("cuCtxSetCurrent", context)

    def check(self, function: str, *arguments: object) -> None:
        result = getattr(self.lib, function)(*arguments)
        assert result == 0, f"{function}: {result}"

    def stream(self) -> int:
        handle = ctypes.c_void_p()
        self.check("cuStreamCreate", ctypes.byref(handle), 1)
        return int(handle.value or 0)

    def is_busy(self, stream: int) -> bool:
        result = self.lib.cuStreamQuery(ctypes.c_void_p(stream))
        assert result in (0, NOT_READY)
        return bool(result == NOT_READY)

    def synchronize(self, stream: int) -> None:
        self.check("cuStreamSynchronize", ctypes.c_void_p(stream))


class Graph:
    """What a stream was given while this was its context: a graph, and its executable."""

    def __init__(self, driver: Driver, stream: int) -> None:
        self._driver = driver
        self._stream = ctypes.c_void_p(stream)
        self._graph = ctypes.c_void_p()
        self.executable = ctypes.c_void_p()

    def __enter__(self) -> Graph:
        self._driver.check("cuStreamBeginCapture_v2", self._stream, 1)  # of this thread
        return self

    def __exit__(self, *_: object) -> None:
        self._driver.check("cuStreamEndCapture", self._stream, ctypes.byref(self._graph))
        self._driver.check(
            "cuGraphInstantiateWithFlags",
            ctypes.byref(self.executable),
            self._graph,
            ctypes.c_ulonglong(0),
        )

    def raw_cuda_graph_exec(self) -> int:
        """As PyTorch's."""
        return int(self.executable.value or 0)

    def launch(self) -> None:
        self._driver.check("cuGraphLaunch", self.executable, self._stream)


class Foreign:
    """Memory of cudaMalloc, as a library has it that knows `__cuda_array_interface__` only."""

    def __init__(self, driver: Driver, values: np.ndarray) -> None:
        self._driver = driver
        pointer = ctypes.c_uint64()
        driver.check("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(values.nbytes))
        self.address = pointer.value
        data = values.tobytes("A")
        driver.check("cuMemcpyHtoD_v2", pointer, data, ctypes.c_size_t(len(data)))
        self.__cuda_array_interface__ = {
            "shape": values.shape,
            "typestr": values.dtype.str,
            "data": (self.address, False),
            "version": 3,
            "strides": None if values.flags.c_contiguous else values.strides,
        }

    def __del__(self) -> None:
        self._driver.check("cuMemFree_v2", ctypes.c_uint64(self.address))
