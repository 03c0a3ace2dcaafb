"""The experts that a mixture chose for each position: they lie in the cache as one layer more, so that they come and go
with its rows. What records them is ``watch_rows`` of the model (rlhf-plugin-experts)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from rlhf_core.models.layers.trunk_and_head import base_model
from rlhf_plugin_native.decode_step import GrowingLayer


class RoutingLayer(GrowingLayer):
    """``keys`` are int16 ``[B, layers with experts, positions, chosen experts]``; there are no values."""

    def choices(self, row: int, first: int, count: int) -> np.ndarray[Any, Any]:
        """Of ``count`` positions of a row, from ``first`` on, ``[count, L, K]``."""
        return self.buffers[0][row, :, first : first + count].transpose(0, 1).cpu().numpy()


def recorder(model: Any) -> Any:
    """What records the experts of a model whose update is to choose the same; None for any other."""
    watch = base_model(model).__dict__.get("watch_rows")
    return watch if getattr(watch, "replays", False) else None


def add_choices(cache: Any, chosen_NLK: torch.Tensor, rows: int) -> None:
    """Put what was chosen in a forward of ``rows`` rows behind the positions before."""
    chosen_BLPK = chosen_NLK.view(rows, -1, *chosen_NLK.shape[1:]).transpose(1, 2)
    if not isinstance(cache.layers[-1], RoutingLayer):
        cache.layers.append(RoutingLayer())
    cache.layers[-1].update(chosen_BLPK, chosen_BLPK[..., :0])
