"""Whether a model is an encoder."""

from __future__ import annotations

from typing import Any

import torch

from rlhf_core.models.layers.agreement import agree
from rlhf_core.models.layers.split import probe_ids
from rlhf_core.models.layers.trunk_and_head import base_model, quiet


def looks_ahead(model: Any) -> bool:
    """Whether a token's output depends on the tokens after it, as in an encoder; runs one short forward.

    Args:
        model: a language model, or a trunk alone.
    """
    first = probe_ids(model)[0]
    ids_BL = torch.tensor([first, [*first[:-1], first[0]]], device=next(model.parameters()).device)
    with torch.no_grad(), quiet(model):
        out = base_model(model)(input_ids=ids_BL, use_cache=False)
        one_LX, other_LX = (out.logits if "logits" in out else out.last_hidden_state)[:, :-1]
    return not agree(one_LX, other_LX, model)
