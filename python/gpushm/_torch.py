# SPDX-License-Identifier: Apache-2.0
"""PyTorch modules over shared tensors. PyTorch is imported when it is needed."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpushm._tensors import safe_open

if TYPE_CHECKING:
    from gpushm._core import Client

__all__ = ["load_into"]


def load_into(
    name: str,
    module: Any,
    *,
    device: str | int | None = None,
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
