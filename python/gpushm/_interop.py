# SPDX-License-Identifier: Apache-2.0
"""Conversions that need another library, which is imported when it is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpushm._core import Array

# Integers of the size of element types that NumPy lacks.
_SAME_SIZE = {1: "uint8", 2: "uint16", 4: "uint32"}


def to_numpy(array: Array, dtype: Any = None, copy: bool | None = None) -> Any:
    """A NumPy array on the elements, without a copy unless it must be one (``copy``, ``dtype``).

    Types that NumPy lacks are those of ml_dtypes. Raises TypeError for memory of a GPU, and if
    ml_dtypes is missing or lacks the type; BufferError if the array is not ready.
    """
    import numpy

    if array.__dlpack_device__()[0] != 1:
        raise TypeError(
            "the array is on a GPU (use from_dlpack of PyTorch, CuPy or JAX, or tobytes())"
        )
    wanted = numpy_dtype(array.dtype)
    if wanted.isbuiltin == 1:
        result = numpy.asarray(memoryview(array))
    else:
        result = numpy.asarray(memoryview(array.view(_SAME_SIZE[array.itemsize]))).view(wanted)
    if dtype is not None and result.dtype != numpy.dtype(dtype):
        if copy is False:
            raise ValueError(f"elements of {array.dtype} cannot be {dtype} without a copy")
        return result.astype(dtype)
    return result.copy() if copy else result


def numpy_dtype(name: str) -> Any:
    """NumPy's dtype of this name, which may be one of ml_dtypes. Raises TypeError."""
    import numpy

    if hasattr(numpy, name) or name == "bool":
        return numpy.dtype(name)
    try:
        import ml_dtypes

        return numpy.dtype(getattr(ml_dtypes, name))
    except (ImportError, AttributeError) as error:
        raise TypeError(
            f"NumPy has no type {name} (install ml_dtypes, or use view() as an integer type of the "
            "same size)"
        ) from error
