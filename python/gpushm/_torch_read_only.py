# SPDX-License-Identifier: Apache-2.0
"""A class of PyTorch's tensors that operations do not write to.

A module of its own because a class of PyTorch's needs PyTorch when the module is imported; _torch.py,
which is always imported, does not.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from gpushm import _html

__all__: list[str] = []

_STEP = "make_private(model) copies what is trained; clone() copies one tensor"


@functools.cache
def _written(function: Any) -> tuple[tuple[int, str], ...] | None:
    """Places and names of the arguments that an operation writes to; None: it says nothing of them."""
    schema = function._schema
    written = tuple(
        (place, each.name)
        for place, each in enumerate(schema.arguments)
        if each.alias_info is not None and each.alias_info.is_write
    )
    # Operations of torch.distributed do not declare it.
    return None if not written and schema.name.endswith("_") else written


def _plain(value: Any) -> Any:
    if isinstance(value, ReadOnlyTensor):
        return value._plain
    if type(value) in (list, tuple):
        return type(value)(_plain(each) for each in value)
    return value


def _has_shared(value: Any) -> bool:
    if isinstance(value, ReadOnlyTensor):
        return value._is_shared
    return type(value) in (list, tuple) and any(_has_shared(each) for each in value)


def _storages(values: Any) -> set[int]:
    found = set()
    for each in values:
        if isinstance(each, ReadOnlyTensor) and each._is_shared:
            found.add(each._plain.untyped_storage()._cdata)
        elif type(each) in (list, tuple):
            found |= _storages(each)
    return found


def _wrap(result: Any, storages: set[int]) -> Any:
    """Views of shared memory are weights, too; other results are plain."""
    if isinstance(result, torch.Tensor) and not isinstance(result, ReadOnlyTensor):
        if result.layout is torch.strided and result.untyped_storage()._cdata in storages:
            return ReadOnlyTensor.of(result)
        return result
    if type(result) in (list, tuple):
        return type(result)(_wrap(each, storages) for each in result)
    return result


class ReadOnlyTensor(torch.Tensor):  # type: ignore[misc]
    """A tensor in memory that is mapped for reading only, made by :meth:`of`. An operation that would
    write to it, or to a view of it, raises RuntimeError. Copies of it are plain tensors.

    The constructor is that of ``torch.nn.Parameter``: accelerate makes parameters with the class of
    those that they replace.
    """

    _plain: torch.Tensor
    _is_shared: bool

    @staticmethod
    def __new__(cls, data: torch.Tensor, requires_grad: bool = True) -> Any:
        return torch.nn.Parameter(data, requires_grad)

    def __init__(self, data: torch.Tensor, requires_grad: bool = True) -> None:
        pass

    @classmethod
    def of(cls, plain: torch.Tensor) -> ReadOnlyTensor:
        self: ReadOnlyTensor = torch.Tensor._make_subclass(cls, plain)
        self._plain = plain.detach()
        self._is_shared = True
        return self

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        written = _written(func)
        if written is None:
            targets = [*args, *kwargs.values()]
        else:
            targets = [
                args[place] if place < len(args) else kwargs.get(name) for place, name in written
            ]
        if any(_has_shared(each) for each in targets):
            raise RuntimeError(
                f"{func.name()} writes to a tensor of a gpushm segment, which is mapped for reading "
                f"only ({_STEP})"
            )
        storages = _storages([*args, *kwargs.values()])
        result = func(
            *[_plain(each) for each in args], **{key: _plain(each) for key, each in kwargs.items()}
        )
        return _wrap(result, storages) if storages else result

    # Replaced by other memory, as Module.to() does: not a segment's.
    data = property(
        lambda self: torch.Tensor.data.__get__(self),
        lambda self, value: self._set_data(value),
    )

    def _set_data(self, value: torch.Tensor) -> None:
        torch.Tensor.data.__set__(self, value)
        self._plain = _plain(value).detach()
        self._is_shared = isinstance(value, ReadOnlyTensor) and value._is_shared

    def numpy(self, *, force: bool = False) -> Any:
        """Read-only, without a copy."""
        if self.requires_grad and not force:
            raise RuntimeError(
                "a tensor that requires grad has no NumPy array (use detach().numpy())"
            )
        result = self._plain.numpy(force=force)
        result.flags.writeable = not self._is_shared
        return result

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        result = self.numpy()
        if dtype is not None and result.dtype != dtype:
            return result.astype(dtype)
        return result.copy() if copy else result

    def tolist(self) -> Any:
        return self._plain.tolist()

    def __dlpack__(self, **options: Any) -> Any:
        if self._is_shared and not options.get("copy"):
            raise BufferError(f"DLPack of PyTorch cannot say that memory is read-only ({_STEP})")
        return self._plain.__dlpack__(**options)

    @property
    def __cuda_array_interface__(self) -> Any:
        result = self._plain.__cuda_array_interface__
        return {**result, "data": (result["data"][0], self._is_shared)}

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) not in memo:
            memo[id(self)] = self._as_plain(self._plain.clone())
        return memo[id(self)]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._as_plain(self._plain).__reduce_ex__(protocol)

    def _as_plain(self, tensor: torch.Tensor) -> Any:
        if getattr(self, "_is_param", False):
            return torch.nn.Parameter(tensor, requires_grad=self.requires_grad)
        return tensor.requires_grad_(self.requires_grad)

    def __repr__(self, **options: Any) -> str:
        return f"gpushm, read-only: {self._plain!r}" if self._is_shared else repr(self._plain)

    def _repr_html_(self) -> str | None:
        """For notebooks; None: they show the representation."""
        return _html.of_weight(self._plain) if self._is_shared else None
