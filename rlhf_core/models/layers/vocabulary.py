"""A head may have more rows than the tokenizer has tokens: ids without a text get the logit ``-inf`` from sampler and
trainer alike.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

from rlhf_core.models.layers.trunk_and_head import WITHOUT_TEXT, base_model, probe_ids, quiet


def mask_ids_without_text(model: Any, ids: Collection[int]) -> None:
    """Give the head's rows that stand for none of the tokenizer's ``ids`` the logit ``-inf``, whatever calls the head;
    of a model that changes logits after the head (a cap), also those that it returns.
    """
    base, head = base_model(model), base_model(model).get_output_embeddings()
    rows = base.config.get_text_config().vocab_size if head is None else head.weight.shape[0]
    nameless = torch.tensor(sorted(set(range(rows)) - set(ids)), dtype=torch.long)
    for module in (head, base) if len(nameless) else ():
        if module is None or (module is base and _masked(base, nameless)):
            continue
        place = next(module.parameters()).device
        module.register_buffer(WITHOUT_TEXT, nameless if place.type == "meta" else nameless.to(place), persistent=False)
        module.register_forward_hook(_mask)


def _mask(module: torch.nn.Module, _: object, out: Any) -> Any:
    ids = module.get_buffer(WITHOUT_TEXT)
    if isinstance(out, torch.Tensor):
        return out.index_fill(-1, ids.to(out.device), -torch.inf)
    out.logits = out.logits.index_fill(-1, ids.to(out.logits.device), -torch.inf)
    return out


def _masked(model: Any, ids: torch.Tensor) -> bool:
    """Whether the model's own logits of these ids are ``-inf``; False where there are no weights to try it."""
    if next(model.parameters()).is_meta:
        return False
    probe_BL = torch.tensor(probe_ids(model)[:1], device=next(model.parameters()).device)
    with torch.no_grad(), quiet(model):
        return bool(model(input_ids=probe_BL, use_cache=False).logits[..., ids].isneginf().all())
