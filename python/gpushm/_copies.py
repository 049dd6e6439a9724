# SPDX-License-Identifier: Apache-2.0
"""Copies of tensors of PyTorch, NumPy and CuPy, on a stream."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from gpushm._core import Segment


class Copy(NamedTuple):
    name: str
    target: Any
    source: Any


@contextlib.contextmanager
def naming(name: str) -> Iterator[None]:
    """Errors say which tensor they are about."""
    try:
        yield
    except (TypeError, ValueError, BufferError, RuntimeError) as error:
        if type(error) in (TypeError, ValueError, BufferError, RuntimeError):
            raise type(error)(f'tensor "{name}": {error}') from error
        raise


def framework_of(tensor: Any) -> str:
    """Raises TypeError for what cannot be changed."""
    for name, kind in (("torch", "Tensor"), ("numpy", "ndarray"), ("cupy", "ndarray")):
        module = sys.modules.get(name)
        if module is not None and isinstance(tensor, getattr(module, kind)):
            return name
    raise TypeError(
        f"{type(tensor).__name__} is not a tensor of PyTorch, NumPy or CuPy "
        "(open the version instead: Client.get gives other libraries its arrays)"
    )


def part_of(tensor: Any, index: tuple[Any, ...]) -> Any:
    """A view."""
    full = all(
        each is Ellipsis or (each.start == 0 and each.stop == count)
        for each, count in zip(index, (*tensor.shape, 0), strict=True)
    )
    return tensor if full else tensor[index]


class Fence:
    """The completion of what streams were given before."""

    def __init__(self, events: Sequence[Any] = ()) -> None:
        #: PyTorch's or CuPy's.
        self._events = events

    def is_done(self) -> bool:
        return all(each.query() if hasattr(each, "query") else each.done for each in self._events)

    def wait(self) -> None:
        for each in self._events:
            each.synchronize()


@contextlib.contextmanager
def on_stream(tensors: Sequence[Any], stream: object) -> Iterator[Callable[[], Fence]]:
    """In the statement, what libraries enqueue for ``tensors`` is enqueued on ``stream``. Gives what
    makes a fence of it.
    """
    framework = framework_of(tensors[0])
    with contextlib.ExitStack() as stack:
        if framework == "torch":
            import torch

            devices = sorted({each.device.index for each in tensors if each.is_cuda})
            is_inference = any(each.is_inference() for each in tensors)
            guard: Any = torch.inference_mode if is_inference else torch.no_grad
            stack.enter_context(guard())
            if stream is not None and devices:
                stack.enter_context(torch.cuda.stream(_torch_stream(stream, devices[0])))
            yield lambda: Fence(
                [torch.cuda.current_stream(each).record_event() for each in devices]
            )
        elif framework == "cupy":
            import cupy

            if stream is not None:
                own: Any = stream
                if not hasattr(stream, "use"):
                    own = cupy.cuda.ExternalStream(_number(stream))
                stack.enter_context(own)
            yield lambda: Fence([cupy.cuda.get_current_stream().record()])
        else:
            yield Fence


def is_view(tensor: Any) -> bool:
    """Whether PyTorch's tensor shares its memory with one that it was made of: assigning its ``data``
    changes the view only. In inference mode PyTorch does not know: then, whether its storage is larger.
    """
    if tensor.is_inference():
        return bool(tensor.untyped_storage().nbytes() != tensor.nbytes)
    return bool(tensor._is_view())


def wait_for_stream(stream: Any, segment: Segment) -> None:
    """Block until a stream, or its number, has done what it was given before."""
    if hasattr(stream, "synchronize"):
        stream.synchronize()
    else:
        segment.read(0, 1, stream=stream)


def wait_for_devices(tensors: Sequence[Any]) -> None:
    """Block until the GPUs of PyTorch's tensors have no work of this process."""
    import torch

    for index in sorted({each.device.index for each in tensors if each.is_cuda}):
        torch.cuda.synchronize(index)


def _torch_stream(stream: Any, device: int) -> Any:
    import torch

    if isinstance(stream, torch.cuda.Stream):
        return stream
    return torch.cuda.ExternalStream(_number(stream), device=device)


def _number(stream: Any) -> int:
    """The ``cudaStream_t`` of an object of another library."""
    for name in ("cuda_stream", "ptr"):
        if hasattr(stream, name):
            return int(getattr(stream, name))
    return int(stream)


def _assign(target: Any, source: Any, cast: bool) -> None:
    framework = framework_of(target)
    if framework == "torch":
        target.copy_(source, non_blocking=True)
    else:
        sys.modules[framework].copyto(target, source, casting="same_kind" if cast else "no")


def enqueue(pairs: Sequence[Copy], stream: object, cast: bool) -> Fence:
    """Enqueue copies. If it raises, those that it has enqueued are made."""
    if not pairs:
        return Fence()
    tensors = [tensor for each in pairs for tensor in (each.target, each.source)]
    with on_stream(tensors, stream) as fence:
        try:
            for each in pairs:
                with naming(each.name):
                    _assign(each.target, each.source, cast)
            return fence()
        except BaseException:
            with contextlib.suppress(Exception):
                fence().wait()
            raise
