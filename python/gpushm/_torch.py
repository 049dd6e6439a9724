# SPDX-License-Identifier: Apache-2.0
"""PyTorch modules over shared tensors. PyTorch is imported when it is needed."""

from __future__ import annotations

import contextlib
import fnmatch
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpushm import _core
from gpushm._frameworks import DTYPES, extent
from gpushm._tensors import connected, safe_open

if TYPE_CHECKING:
    from gpushm._core import Client
    from gpushm._types import Device

__all__ = ["MemPool", "load_into", "make_private"]


def load_into(
    name: str,
    module: Any,
    *,
    device: Device | None = None,
    strict: bool = True,
    mutable: Sequence[str] = (),
    client: Client | None = None,
    timeout: float | None = 0.0,
) -> None:
    """Point the parameters of a torch.nn.Module at the tensors of a segment, without a copy.

    ``module`` may be on the meta device. Parameters are replaced by new ones without gradients,
    mapped for reading only: a write to one ends the process (host memory) or the CUDA context.
    Buffers, and what matches a pattern of ``mutable`` (as in ``"*.scale"``), are private copies. Tied
    parameters stay tied; one of their names is enough. ``strict``: the segment has no other tensors,
    and lacks none. ``device``, ``client``, ``timeout``: as :class:`safe_open`.

    Raises ValueError for names, shapes and dtypes that do not fit, with the module unchanged, and
    as :class:`safe_open`.
    """
    import torch

    with safe_open(name, "torch", device, client=client, timeout=timeout) as opened:
        found = opened.get_tensors()
    state = module.state_dict(keep_vars=True)
    wanted = {key: old for key, old in state.items() if isinstance(old, torch.Tensor)}
    tied: dict[int, str] = {}
    private = set()
    for key, old in wanted.items():
        if key in found:
            tied.setdefault(id(old), key)
        if any(fnmatch.fnmatchcase(key, each) for each in mutable):
            private.add(id(old))
    problems = [
        f"{key} is missing" for key, old in wanted.items() if strict and id(old) not in tied
    ]
    problems += [f"{key} is not of the module" for key in found if strict and key not in wanted]
    for key, old in wanted.items():
        if key not in found:
            continue
        new = found[key]
        if tuple(new.shape) != tuple(old.shape) or new.dtype != old.dtype:
            problems.append(
                f"{key} has {new.dtype} {tuple(new.shape)}, and the module {old.dtype} {tuple(old.shape)}"
            )
    if problems:
        more = f", and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise ValueError(f'load_into "{name}": ' + "; ".join(problems[:5]) + more)
    made: dict[int, Any] = {}
    for key, old in wanted.items():
        if id(old) not in tied:
            continue
        path, _, last = key.rpartition(".")
        owner = module.get_submodule(path)
        is_parameter = last in owner._parameters
        if id(old) not in made:
            new = found[tied[id(old)]]
            if not is_parameter or id(old) in private:
                new = new.clone()
            made[id(old)] = torch.nn.Parameter(new, requires_grad=False) if is_parameter else new
        (owner._parameters if is_parameter else owner._buffers)[last] = made[id(old)]


def make_private(module: Any, patterns: Sequence[str] = ("*",)) -> int:
    """Give a module private, writable copies of the parameters that match one of ``patterns``.

    For what a program is about to write: an adapter that is merged, a layer that is trained. CUDA
    has no mapping that is copied by the first write to it, so the copy is made here, before. Tied
    parameters stay tied; what is private already is not copied. Returns the number of tensors that
    were copied. Blocks for the copies (on the current stream of PyTorch).
    """
    import torch

    copies: dict[int, Any] = {}
    for path, owner in module.named_modules():
        for members in (owner._parameters, owner._buffers):
            for last, old in members.items():
                key = f"{path}.{last}" if path else last
                if old is None or not any(fnmatch.fnmatchcase(key, each) for each in patterns):
                    continue
                if id(old) in copies or shared_bytes(old) is None:
                    continue
                new = old.detach().clone()
                if isinstance(old, torch.nn.Parameter):
                    new = torch.nn.Parameter(new, requires_grad=old.requires_grad)
                copies[id(old)] = new
    # All names of a tied tensor, also those that no pattern matches.
    for owner in module.modules():
        for members in (owner._parameters, owner._buffers):
            for last, old in members.items():
                if id(old) in copies:
                    members[last] = copies[id(old)]
    return len(copies)


# ---- tensors of PyTorch as bytes ----


def shared_bytes(tensor: Any) -> _core.Array | None:
    """The bytes of a tensor, if they are those of a segment that this process has open."""
    size = extent(tensor.shape, tensor.stride(), tensor.element_size())
    return _core.find_memory(tensor.data_ptr(), size) if size else None


def plain(tensor: Any) -> tuple[Any, str | None]:
    """A tensor of the same memory that DLPack can express, and the name of the type if it cannot.

    Raises TypeError for sparse, nested and meta tensors.
    """
    import torch

    if tensor.layout != torch.strided or tensor.is_nested or tensor.device.type == "meta":
        raise TypeError(
            f"a tensor of layout {tensor.layout} on {tensor.device} has no memory that can be shared "
            "(make it dense first)"
        )
    tensor = tensor.detach().resolve_conj().resolve_neg()
    name = str(tensor.dtype).removeprefix("torch.")
    if name in DTYPES.values():
        return tensor, None
    same_size = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32, 8: torch.uint64}
    return tensor.view(same_size[tensor.element_size()]), name


def whole_storage(tensor: Any) -> Any:
    """All bytes of a tensor's storage, as a tensor that keeps it alive."""
    import torch

    storage = tensor.untyped_storage()
    bytes_of = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return bytes_of.set_(storage, 0, (storage.nbytes(),), (1,))


def quantised_parts(tensor: Any) -> tuple[Any, dict[str, Any]]:
    """The bytes of a quantised tensor's storage, and what :func:`make_quantised` needs."""
    tensor = tensor.detach()
    how = {
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": list(tensor.shape),
        "strides": list(tensor.stride()),
        "offset": tensor.storage_offset(),
        "scheme": str(tensor.qscheme()).removeprefix("torch."),
    }
    if how["scheme"] == "per_tensor_affine":
        how |= {"scale": tensor.q_scale(), "zero_point": tensor.q_zero_point()}
    else:
        how |= {
            "scales": tensor.q_per_channel_scales(),
            "zero_points": tensor.q_per_channel_zero_points(),
            "axis": tensor.q_per_channel_axis(),
        }
    return whole_storage(tensor), how


def make_quantised(bytes_of: Any, how: dict[str, Any]) -> Any:
    """A quantised tensor on these bytes, without a copy. Another process has written ``how``.

    Raises KeyError, TypeError, ValueError, AttributeError or RuntimeError for what is not valid.
    """
    import torch

    bits = {"quint8": 8, "qint8": 8, "qint32": 32, "quint4x2": 4, "quint2x4": 2}[how["dtype"]]
    shape, strides, offset = how["shape"], how["strides"], how["offset"]
    if any(type(each) is not int or each < 0 for each in (*shape, *strides, offset)):
        raise ValueError("a negative number")
    elements = offset + extent(shape, strides, 1)
    if -(-elements * bits // 8) > bytes_of.numel():
        raise ValueError("it is larger than its memory")
    scheme = getattr(torch, how["scheme"])
    parameters: tuple[Any, ...]
    if how["scheme"] == "per_tensor_affine":
        parameters = (scheme, float(how["scale"]), int(how["zero_point"]))
    else:
        parameters = (scheme, how["scales"], how["zero_points"], int(how["axis"]))
    storage = torch.storage.TypedStorage(
        wrap_storage=bytes_of.untyped_storage(), dtype=getattr(torch, how["dtype"]), _internal=True
    )
    return torch._utils._rebuild_qtensor(storage, offset, shape, strides, parameters, False, {})


# ---- memory that is shareable from the beginning ----

# PyTorch calls an allocator as long as memory of it exists.
_allocators: dict[str, Any] = {}


class MemPool:
    """A pool of PyTorch whose memory is segments: born shareable, by name, without a copy.

    A context manager: tensors that are made on the GPU in its ``with`` statement are in segments
    ``name/0``, ``name/1``, …, of 2 MiB and more, which others can open, and which
    :meth:`Client.share`, :class:`SharedTensor` and :mod:`gpushm.reductions` pass by name. As for
    every pool of PyTorch, the statement is for this thread, and memory of tensors that are gone is
    used again by the pool only. Segments end when PyTorch returns their memory
    (``torch.cuda.empty_cache()``) and no other process has them open.

    ``client``: None connects, as :func:`connect` without arguments does. ``device``: of the ``with``
    statement; None: PyTorch's current one. At most 32 pools of a process exist at a time.

    Raises, in the statement, ``torch.cuda.OutOfMemoryError`` as PyTorch does; its cause is the
    :class:`gpushm.Error` if a segment could not be made. PyTorch 2.8 or later.
    """

    def __init__(self, name: str, *, client: Client | None = None, device: Any = None) -> None:
        import torch

        self._name = name
        self._device = device
        with connected(client) as connection:
            self._core = _core.TorchPool(connection, name)
        symbol = self._core.malloc_symbol
        if symbol not in _allocators:
            _allocators[symbol] = torch.cuda.memory.CUDAPluggableAllocator(
                _core.__file__, symbol, "gpushm_torch_free"
            )
        self._pool = torch.cuda.MemPool(_allocators[symbol].allocator())
        self._uses: list[contextlib.ExitStack] = []

    @property
    def name(self) -> str:
        return self._name

    @property
    def pool(self) -> Any:
        """The ``torch.cuda.MemPool``, for ``torch.cuda.use_mem_pool`` and graphs."""
        return self._pool

    @property
    def segments(self) -> int:
        """How many segments the pool has."""
        return self._core.live

    def __enter__(self) -> MemPool:
        import torch

        use = contextlib.ExitStack()
        use.enter_context(torch.cuda.use_mem_pool(self._pool, self._device))
        self._uses.append(use)
        return self

    def __exit__(self, type: object, value: object, traceback: object, /) -> None:
        import torch

        self._uses.pop().close()
        if isinstance(value, torch.cuda.OutOfMemoryError) and value.__cause__ is None:
            value.__cause__ = self._core.last_error

    def __repr__(self) -> str:
        return f'<gpushm.MemPool "{self._name}", {self.segments} segments>'
