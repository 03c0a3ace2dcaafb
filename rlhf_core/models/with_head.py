"""A transformer with a scalar head. When it is saved, whole weights are looked up by name: its own may be shards."""

from __future__ import annotations

import contextlib
import copy
import logging
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Self

import torch

from rlhf_core.models.config import ModelConfig
from rlhf_core.models.layers import packing
from rlhf_core.models.layers.trunk_and_head import (
    Ids,
    agree,
    base_model,
    check_length,
    pad_rows,
    quiet,
    rounding_tolerance,
)
from rlhf_core.models.load import clear_quantization_config, context_length
from rlhf_core.models.save import write_transformer
from rlhf_core.models.slices import ValuesForAdapters, load_named
from rlhf_core.models.tensor_files import ComputedWeights, on_demand, save_named
from rlhf_core.types.errors import ModelError

log = logging.getLogger(__name__)
WORTH_SHARING = 4
"""Fewer common tokens than this are laid as often as they occur."""

_known: weakref.WeakKeyDictionary[torch.nn.Module, bool] = weakref.WeakKeyDictionary()


def last_token_hidden(trunk: torch.nn.Module, ids_B: Ids, *, without_padding: bool = True) -> torch.Tensor:
    """Return ``hidden_BH``, with gradient; it depends on nothing but each row's own tokens (beyond rounding).

    Args:
        trunk: a transformers decoder without its language-model head, or one wrapped by peft.
        ids_B: token ids, at least one each.
        without_padding: lay the sequences end to end where the trunk allows it.

    Raises:
        ValueError: a sequence has no tokens, or more than the rotary embeddings allow.
    """
    if not all(len(row) for row in ids_B):
        raise ValueError("a sequence has no tokens; its last one cannot be read")
    check_length(trunk, max(map(len, ids_B)))
    if without_padding and can_pack(trunk):
        return packed_last(trunk, ids_B)
    return padded_last(trunk, ids_B)


def padded_last(trunk: torch.nn.Module, ids_B: Ids) -> torch.Tensor:
    """The plain equivalent of :func:`packed_last`: one padded forward."""
    device = next(trunk.parameters()).device
    ids_BL, mask_BL = pad_rows(ids_B, device)
    hidden_BLH = trunk(input_ids=ids_BL, attention_mask=mask_BL, use_cache=False).last_hidden_state
    return hidden_BLH[torch.arange(len(ids_B), device=device), mask_BL.sum(1) - 1]


def packed_last(trunk: torch.nn.Module, ids_B: Ids) -> torch.Tensor:
    """One row without padding, common beginnings once."""
    shared_B = common_beginnings(ids_B)
    # the packed row leaves out the last token of each completion, so one that nobody reads is put there
    rests = [(*ids[n:], 0) for ids, n in zip(ids_B, shared_B)]
    row = packing.pack([ids[:n] for ids, n in zip(ids_B, shared_B)], rests, share=True)
    ends = [row.predicting[stop - 1] for stop in accumulate(len(rest) for rest in rests)]
    return packing.row_hidden(trunk, replace(row, predicting=ends))


def common_beginnings(ids_B: Ids) -> list[int]:
    """How many leading tokens of each sequence are laid once for it and its neighbours in sorted order: it joins the
    group before it while that saves most. At least one token of each stays its own.
    """
    rows = [tuple(row) for row in ids_B]
    order = sorted(range(len(rows)), key=rows.__getitem__)
    with_next = [*(_common(rows[i], rows[j]) for i, j in pairwise(order)), 0]
    shared_B = [0] * len(rows)
    group, length = order[:1], 0
    for at, i in enumerate(order[1:], 1):
        common = with_next[at - 1] if len(group) == 1 else min(length, with_next[at - 1])
        gain = len(group) * common - (len(group) - 1) * length
        if common >= WORTH_SHARING and gain >= 0 and gain + common >= with_next[at]:
            group, length = [*group, i], common
        else:
            _assign(shared_B, group, length)
            group, length = [i], 0
    _assign(shared_B, group, length)
    return shared_B


def _assign(shared_B: list[int], group: Sequence[int], length: int) -> None:
    for member in group:
        shared_B[member] = length


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    """Number of equal leading tokens, one token of the shorter left aside."""
    most = min(len(first), len(second)) - 1
    return next((n for n in range(most) if first[n] != second[n]), most)


def can_pack(trunk: torch.nn.Module) -> bool:
    """Whether packed rows give this trunk's own hidden states; the first call runs two small forwards."""
    base = base_model(trunk)
    if base not in _known:
        with torch.no_grad(), quiet(trunk):
            _known[base] = _packing_agrees(trunk)
    return _known[base] and base.config._attn_implementation == packing.NAME  # another may have been set since


def _packing_agrees(trunk: torch.nn.Module) -> bool:
    base = base_model(trunk)
    if getattr(base.config, "_attn_implementation", None) not in ("sdpa", packing.NAME):
        return False
    size = int(base.config.get_text_config().vocab_size)
    rows = [
        [(7 * i + 1) % size for i in range(9)],
        [(7 * i + 1) % size for i in range(6)] + [3 % size, 5 % size],
        [(5 * i + 2) % size for i in range(4)],
    ]
    before = base.config._attn_implementation
    want, every_N = padded_last(trunk, rows), torch.cat([_every(trunk, row) for row in rows])
    packing.register()
    try:
        base.set_attn_implementation(packing.NAME)
        whole = packing.pack([()] * len(rows), [(*row, 0) for row in rows], share=False)
        # every token, for in a trunk that looks both ways the last one may hardly differ
        apart = packing.row_hidden(trunk, replace(whole, predicting=list(range(len(whole.ids)))))
        agrees = agree(apart, every_N, trunk) and agree(packed_last(trunk, rows), want, trunk)
    except (TypeError, ValueError, RuntimeError, KeyError, AttributeError, IndexError) as error:
        log.info("packing is off for %s: %s", type(base).__name__, error)
        agrees = False
    if not agrees:
        base.set_attn_implementation(before)
    return agrees


def _every(trunk: torch.nn.Module, row: Sequence[int]) -> torch.Tensor:
    """Hidden states ``[L, H]`` of one sequence alone."""
    ids = torch.tensor([row], device=next(trunk.parameters()).device)
    return trunk(input_ids=ids, use_cache=False).last_hidden_state[0]


class TransformerWithHead(torch.nn.Module):
    """A trunk without its language-model head, and a head ``Linear(H, K)`` of one or several scores; a subclass says
    what ``forward`` computes of them.
    """

    def __init__(self, trunk: Any, head: torch.nn.Linear) -> None:
        super().__init__()
        self.trunk, self.head = trunk, head

    @classmethod
    def from_classifier(cls, model: Any) -> Self:
        """Trunk and head of transformers' sequence classifier.

        Raises:
            ModelError: it has no linear scalar head.
        """
        clear_quantization_config(model)
        return cls(getattr(model, model.base_model_prefix), head_of(model))

    @staticmethod
    def with_adapters(trunk: Any, seed: int) -> Any:
        """A trunk with low-rank adapters on every linear layer, seeded."""
        from peft import LoraConfig, get_peft_model

        torch.manual_seed(seed)
        settings = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="FEATURE_EXTRACTION")
        with ValuesForAdapters(trunk):
            return get_peft_model(trunk, settings)

    @property
    def context(self) -> int:
        """Tokens that the trunk takes."""
        return context_length(self.trunk, ModelConfig())

    @property
    def tolerance(self) -> float:
        """Largest relative difference between two computations of a score that is put down to rounding."""
        return rounding_tolerance(self.trunk)

    def can_pack(self) -> bool:
        """Whether packed rows give the trunk's own hidden states; the first call runs two small forwards."""
        return can_pack(self.trunk)

    def save_classifier(self, folder: Path, pad_id: int | None, weights: Mapping[str, Any] | None = None) -> None:
        """Write a one-score module (``weights``: gathered from all ranks; None takes its own) so that
        ``AutoModelForSequenceClassification`` loads it with one label.
        """
        from transformers import AutoModelForSequenceClassification

        base = base_model(self.trunk)
        config = copy.deepcopy(base.config)
        config.num_labels, config.pad_token_id = 1, pad_id
        config.architectures = None
        weights = self.state_dict() if weights is None else weights
        trunk = trunk_weights(self.trunk, weights)
        with torch.device("meta") if on_demand(weights) else contextlib.nullcontext():
            model = AutoModelForSequenceClassification.from_config(config, dtype=next(base.parameters()).dtype)
        clear_quantization_config(model)
        if on_demand(weights):
            folder.mkdir(parents=True, exist_ok=True)
            write_transformer(model, classifier_weights(model, head_of(model), trunk, weights), folder)
        else:
            getattr(model, model.base_model_prefix).load_state_dict(dict(trunk))
            head_of(model).weight.data.copy_(weights["head.weight"].detach())
            model.save_pretrained(folder)

    def save_trunk(self, folder: Path, weights: Mapping[str, Any] | None = None) -> None:
        """Write the trunk alone, adapters folded in; ``weights`` as of :meth:`save_classifier`."""
        base = base_model(self.trunk)
        clear_quantization_config(base)
        write_transformer(base, trunk_weights(self.trunk, self.state_dict() if weights is None else weights), folder)

    def save_trained(self, file: Path, weights: Mapping[str, Any]) -> None:
        """Write what is being trained into one file, by name; each of ``weights`` is looked up when it is written."""
        names = {k for k, v in self.named_parameters() if v.requires_grad}
        save_named(weights, [k for k in weights if k in names], file)

    def load_trained(self, file: Path) -> None:
        """Read :meth:`save_trained` back, bit for bit; of parameters without memory it is noted where they lie."""
        load_named(self, file)


def head_of(model: Any) -> Any:
    """The scalar head of a sequence classifier (``score`` or ``classifier``)."""
    head = getattr(model, "score", None) or getattr(model, "classifier", None)
    if not isinstance(head, torch.nn.Linear):
        raise ModelError(f"{type(model).__name__} has no linear scalar head", fix="give a decoder with a `score` layer")
    return head


def trunk_weights(trunk: Any, weights: Mapping[str, Any]) -> ComputedWeights:
    """Weights of a net's trunk under the names that they have without adapters, each computed when it is looked up."""
    base = base_model(trunk)
    prefix = "trunk." if base is trunk else "trunk.base_model.model."
    adapted = {name: layer for name, layer in base.named_modules() if hasattr(layer, "get_delta_weight")}
    layer_of = {f"{name}.{leaf}": name for name, layer in adapted.items() for leaf, _ in layer.named_parameters()}
    stored: dict[str, str] = {}
    for name in (key.removeprefix(prefix) for key in weights if key.startswith(prefix)):
        layer = layer_of.get(name)
        if layer is None:
            stored[name] = prefix + name
        elif name.startswith(f"{layer}.base_layer."):
            stored[f"{layer}.{name.removeprefix(f'{layer}.base_layer.')}"] = prefix + name

    def value(name: str, place: str) -> torch.Tensor:
        layer, _, leaf = name.rpartition(".")
        if layer not in adapted:
            return weights[place]
        return folded(adapted[layer], leaf, weights, f"{prefix}{layer}.")

    return ComputedWeights.of(weights, stored, value)


def folded(layer: Any, leaf: str, weights: Mapping[str, Any], prefix: str) -> torch.Tensor:
    """``W + (alpha / r) B A`` of an adapted layer, to the bit as peft computes it when it merges."""
    if leaf != "weight" and not any(getattr(layer, "lora_bias", {}).values()):
        return weights[f"{prefix}base_layer.{leaf}"]
    copied: dict[int, Any] = {}
    for name, parameter in layer.named_parameters():
        whole = weights[prefix + name].detach()
        copied[id(parameter)] = torch.nn.Parameter(whole if on_demand(weights) else whole.clone(), requires_grad=False)
    merging = copy.deepcopy(layer, copied)
    merging.merge()
    return getattr(merging.get_base_layer(), leaf).detach()


def classifier_weights(model: Any, head: Any, trunk: Mapping[str, Any], weights: Mapping[str, Any]) -> ComputedWeights:
    """A net's gathered weights under the names that a sequence classifier gives them, in its order and number types."""
    prefix, shapes = f"{model.base_model_prefix}.", model.state_dict(keep_vars=True)

    def value(name: str) -> torch.Tensor:
        whole = weights["head.weight"] if shapes[name] is head.weight else trunk[name.removeprefix(prefix)]
        return whole.to(shapes[name].dtype)

    return ComputedWeights({name: partial(value, name) for name in shapes}, shapes)
