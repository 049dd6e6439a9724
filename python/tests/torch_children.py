# SPDX-License-Identifier: Apache-2.0
"""What processes run that torch.multiprocessing has spawned."""

from __future__ import annotations

import gc
from typing import Any


def add_one(requests: Any, answers: Any) -> None:
    """Answers with the types, devices and sums of tensors, and adds one to those that are dense."""
    import torch

    while True:
        tensors = requests.get()
        if tensors is None:
            return
        kinds = [type(each).__name__ for each in tensors]
        where = [str(each.device) for each in tensors]
        sums = []
        with torch.no_grad():
            for each in tensors:
                sums.append(float(each.to_dense().double().sum()))
                if each.layout == torch.strided and not each.requires_grad:
                    each.add_(1)
        if any(each.is_cuda for each in tensors):
            torch.cuda.synchronize()
        del tensors, each
        gc.collect()
        answers.put((kinds, where, sums))
