"""Counts live tensors beside gloo's collectives, the same in every run.

A thread of gloo holds a finished collective's tensors until it gets Python's lock, which this process may keep for
milliseconds: up to two tensors that are gone would be counted, in some runs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

from rlhf_plugin_preflight.memory.live import LiveBytes


class LiveBytesWithCollectives(LiveBytes):
    """Collectives work on copies that are not counted, and are over when they return: no thread holds what is."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace != "c10d":
            return super().__torch_dispatch__(func, types, args, kwargs)
        values, structure = pytree.tree_flatten((args, kwargs or {}))
        copies = [value.clone() if isinstance(value, torch.Tensor) else value for value in values]
        args_of_copies, kwargs_of_copies = pytree.tree_unflatten(copies, structure)
        out = func(*args_of_copies, **kwargs_of_copies)
        work = out[-1] if isinstance(out, tuple | list) else out
        work.wait()
        for value, copied in zip(values, copies):
            if isinstance(value, torch.Tensor):
                value.copy_(copied)
        return out
