"""How the engine runs the policy's forwards."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from rlhf_core.models.layers.trunk_and_head import quiet


@contextlib.contextmanager
def sampling_forwards(model: Any) -> Iterator[None]:
    """A context without dropout, in which weights are cast once for all forwards; they must not change in it.

    Autocast keeps casts of trainable weights until the outermost autocast context ends.
    """
    device = next(model.parameters()).device.type
    with quiet(model), torch.autocast(device, torch.bfloat16, enabled=False):
        yield
