# SPDX-License-Identifier: Apache-2.0
"""``shared_weights``: models of Hugging Face's libraries whose parameters lie in a segment."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import importlib
import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from gpushm._tensors import TensorSlice, connected, load_safetensors, safe_open

if TYPE_CHECKING:
    from gpushm._core import Client
    from gpushm._types import Device

__all__ = ["shared_weights"]

_log = logging.getLogger("gpushm")
_block: contextvars.ContextVar[_Block | None] = contextvars.ContextVar("block", default=None)
#: Protects the names of modules, and how many blocks there are.
_guard = threading.Lock()
_blocks = 0
#: safetensors' own.
_original: Callable[..., Any] | None = None
#: Functions of the libraries that allocate the size of a model on its GPU, so that PyTorch's cache has
#: it when the parameters are copied (transformers 5.17, diffusers 0.42).
_WARMUPS = {
    "transformers.modeling_utils": "caching_allocator_warmup",
    "diffusers.models.modeling_utils": "_caching_allocator_warmup",
}
#: Functions that are replaced while there are blocks, each with what replaces it.
_replaced: list[tuple[Callable[..., Any], Callable[..., Any]]] = []
_TORCH = ("pt", "torch", "pytorch")
_OTHERS = ("np", "numpy", "jax", "flax")


@contextlib.contextmanager
def shared_weights(
    name: str,
    *,
    device: Device = "auto",
    read_only: bool = True,
    client: Client | None = None,
    timeout: float | None = 3600.0,
) -> Iterator[None]:
    """In the ``with`` statement, safetensors files of a model are opened as the segment ``name``.

    For ``from_pretrained`` of transformers and diffusers, and for accelerate: the first process loads
    the files into the segment, as :func:`load_safetensors` does, and each process has its
    parameters there. In the statement, and only for its thread or task, ``safetensors.safe_open``
    and ``load_file`` are replaced, also where other modules have imported them. The warm-up of PyTorch's
    cache, by which transformers and diffusers allocate the size of a model on the GPU, is left out if they
    were imported before the statement; after it, the cache is emptied otherwise.

    The first model that is opened has the name ``name``. Components of a pipeline of diffusers are
    ``name/<folder>``. Files of other models are opened as usual, with a warning. ``device``: of
    the segment; ``"cpu"`` for a model on the CPU, else pass the same GPU as ``device_map``. Tensors
    that the library converts (another ``dtype``, merged matrices) are private copies.

    ``read_only``: parameters are of a class of tensors that raises RuntimeError where an operation of
    PyTorch would write to them, as an optimizer's step does, instead of ending the process or the
    CUDA context; :func:`make_private` makes what is trained private. False: plain tensors, for
    ``torch.compile``. ``client``, ``timeout``: as :func:`load_safetensors`.

    Raises, where the library opens a file, as :func:`load_safetensors`; ImportError without safetensors.
    """
    with connected(client, 0.0 if timeout == 3600.0 else timeout) as connection:
        block = _Block(name, device, read_only, connection, timeout)
        _replace()
        token = _block.set(block)
        try:
            yield
        finally:
            _block.reset(token)
            if _has_warmed_up():
                sys.modules["torch"].cuda.empty_cache()
            _restore()
            block.close()


def _replace() -> None:
    global _blocks, _original
    import safetensors

    with _guard:
        if _blocks == 0:
            _original = safetensors.safe_open
            warmups = [(own, _without_block(own)) for own in _imported_warmups()]
            _replaced[:] = [(_original, _open), *warmups]
            _exchange(_replaced)
        _blocks += 1


def _restore() -> None:
    global _blocks
    with _guard:
        _blocks -= 1
        if _blocks == 0:
            _exchange([(new, own) for own, new in _replaced])


def _imported_warmups() -> Iterator[Callable[..., Any]]:
    for name, function in _WARMUPS.items():
        if name.partition(".")[0] in sys.modules:
            with contextlib.suppress(ImportError, AttributeError):
                yield getattr(importlib.import_module(name), function)


def _without_block(own: Callable[..., Any]) -> Callable[..., Any]:
    """A function that does nothing for threads and tasks in a block, where no parameter is copied."""

    @functools.wraps(own)
    def warm_up(*arguments: Any, **options: Any) -> Any:
        return None if _block.get() is not None else own(*arguments, **options)

    return warm_up


def _has_warmed_up() -> bool:
    """A library was imported in the block, so its warm-up was not left out."""
    left_out = [new for _, new in _replaced]
    return any(
        name in sys.modules and getattr(sys.modules[name], function, None) not in left_out
        for name, function in _WARMUPS.items()
    )


def _exchange(pairs: list[tuple[Callable[..., Any], Callable[..., Any]]]) -> None:
    """In all modules, also those that were imported in the statement."""
    new_of = {id(old): new for old, new in pairs}
    for module in list(sys.modules.values()):
        members = getattr(module, "__dict__", None)
        if type(members) is dict and module is not sys.modules[__name__]:
            for key, value in list(members.items()):
                if id(value) in new_of:
                    members[key] = new_of[id(value)]


def _open(filename: Any, *arguments: Any, **options: Any) -> Any:
    """``safetensors.safe_open`` while there are blocks; for other threads, and later, its own."""
    block = _block.get()
    framework = arguments[0] if arguments else options.get("framework")
    if block is not None and framework in (*_TORCH, *_OTHERS):
        device = arguments[1] if len(arguments) > 1 else options.get("device", "cpu")
        found = block.open(os.fspath(filename), framework, device)
        if found is not None:
            return found
    assert _original is not None
    return _original(filename, *arguments, **options)


class _Block:
    """What a ``with`` statement has opened."""

    def __init__(
        self, name: str, device: Device, read_only: bool, client: Client, timeout: float | None
    ) -> None:
        self._name = name
        self._device = device
        self._read_only = read_only
        self._client = client
        self._timeout = timeout
        #: By the path of a model, and the framework; the names that they have.
        self._opened: dict[tuple[str, str], safe_open] = {}
        self._models: dict[str, str] = {}
        self._lock = threading.Lock()

    def open(self, path: Any, framework: str, device: Any) -> _File | None:
        path = os.path.abspath(os.fsdecode(path))
        index, names = _index_of(path)
        model = index or path
        with self._lock:
            name = self._models.get(model) or self._name_of(model)
            if name in [each for other, each in self._models.items() if other != model]:
                _log.warning('%s is not opened as "%s", which has another model', path, name)
                return None
            if (model, framework) not in self._opened:
                load_safetensors(
                    model, name, device=self._device, client=self._client, timeout=self._timeout
                ).close()
                self._models[model] = name
                self._opened[model, framework] = safe_open(
                    name, framework, client=self._client, timeout=self._timeout
                )
            opened = self._opened[model, framework]
        return _File(opened, names, self._converter(framework, device))

    def _name_of(self, model: str) -> str:
        folder = os.path.dirname(model)
        if os.path.exists(os.path.join(os.path.dirname(folder), "model_index.json")):
            return f"{self._name}/{os.path.basename(folder)}"
        return self._name

    def _converter(self, framework: str, device: Any) -> Callable[[Any], Any]:
        if framework not in _TORCH:
            return lambda tensor: tensor
        return lambda tensor: _to_torch(tensor, device, self._read_only)

    def close(self) -> None:
        for each in self._opened.values():
            each.close()


def _to_torch(tensor: Any, device: Any, read_only: bool) -> Any:
    """A tensor of a segment as a library gets it that has asked for ``device``: a GPU gets a copy of
    memory of another device; the host gets memory of a GPU as it is."""
    import torch

    from gpushm._torch_read_only import ReadOnlyTensor

    wanted = torch.device(f"cuda:{device}" if isinstance(device, int) else device or "cpu")
    if wanted.type not in ("cpu", tensor.device.type):
        return tensor.to(wanted)
    return ReadOnlyTensor.of(tensor) if read_only else tensor


def _index_of(path: str) -> tuple[str | None, list[str] | None]:
    """The index that has this file, and the names of the file's tensors; None: it has none."""
    folder, base = os.path.split(path)
    with contextlib.suppress(OSError):
        for each in sorted(os.listdir(folder)):
            if each.endswith(".safetensors.index.json"):
                place = os.path.join(folder, each)
                with contextlib.suppress(OSError, ValueError, KeyError, AttributeError):
                    with open(place, encoding="utf-8") as file:
                        files = json.load(file)["weight_map"]
                    if base in files.values():
                        return place, [key for key, value in files.items() if value == base]
    return None, None


class _File:
    """One file of a model, with the methods of ``safetensors.safe_open``."""

    def __init__(
        self, opened: safe_open, names: list[str] | None, convert: Callable[[Any], Any]
    ) -> None:
        self._opened = opened
        self._names = None if names is None else set(names)
        self._convert = convert

    def _has(self, name: str) -> bool:
        return self._names is None or name in self._names

    def keys(self) -> list[str]:
        names = self._opened.keys()
        return [each for each in names if self._has(each)]

    def offset_keys(self) -> list[str]:
        return [each for each in self._opened.offset_keys() if self._has(each)]

    def metadata(self) -> dict[str, str] | None:
        return self._opened.metadata()

    def get_tensor(self, name: str) -> Any:
        return self._convert(self._opened.get_tensor(name))

    def get_tensors(self) -> dict[str, Any]:
        return {name: self.get_tensor(name) for name in self.offset_keys()}

    def get_slice(self, name: str) -> _Slice:
        return _Slice(self._opened.get_slice(name), self._convert)

    def __enter__(self) -> _File:
        return self

    def __exit__(self, type: object, value: object, traceback: object, /) -> None:
        """The statement closes what it has opened: slices are used after this."""

    def __repr__(self) -> str:
        return repr(self._opened)


class _Slice:
    """As TensorSlice."""

    def __init__(self, part: TensorSlice, convert: Callable[[Any], Any]) -> None:
        self._part = part
        self._convert = convert

    def get_shape(self) -> list[int]:
        return self._part.get_shape()

    def get_dtype(self) -> str:
        return self._part.get_dtype()

    def __getitem__(self, index: Any) -> Any:
        return self._convert(self._part[index])

    def __repr__(self) -> str:
        return repr(self._part)
