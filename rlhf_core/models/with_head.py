"""A transformer with a scalar head: its adapters, and its weights as files have them.

Nothing is asked of the module's own weights when it is saved, which may be shards: whole ones are looked up by name.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch

from rlhf_core.models.config import ModelConfig
from rlhf_core.models.layers.last_token import can_pack
from rlhf_core.models.layers.trunk_and_head import base_model, rounding_tolerance
from rlhf_core.models.load import clear_quantization_config, context_length
from rlhf_core.models.save import write_transformer
from rlhf_core.models.slices import ValuesForAdapters, load_named
from rlhf_core.models.tensor_files import ComputedWeights, on_demand, save_named
from rlhf_core.types.errors import ModelError


class TransformerWithHead(torch.nn.Module):
    """A trunk and a linear head of one or several scores; a subclass says what ``forward`` computes of them.

    Args:
        trunk: transformer without its language-model head.
        head: ``Linear(H, K)``.
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
        """Write a one-score module so that ``AutoModelForSequenceClassification`` loads it with one label.

        Args:
            folder: made where it is not there.
            pad_id: the tokenizer's.
            weights: the module's state dict, gathered from all ranks; None takes its own.
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
        """Write what is being trained into one file, by parameter name.

        Args:
            file: written anew.
            weights: of this module, whole; each is looked up when it is written.
        """
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
    """Weights of a net's trunk under the names that they have without adapters, each computed when it is looked up.

    Args:
        trunk: of the net; adapters wrap it, came with the model, or are not there.
        weights: of the net, whole, by name; where a look-up gathers, one layer's are gathered at a time.
    """
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
    """``W + (alpha / r) B A`` of an adapted layer, to the bit as peft computes it when it merges.

    Args:
        layer: peft's; its own weights are not looked at.
        leaf: ``weight``, or another weight of the layer under the adapters.
        weights: whole, by name.
        prefix: of the layer's weights.
    """
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
    """A net's gathered weights under the names that a sequence classifier gives them, in its order and number types.

    Args:
        model: the classifier, without weights.
        head: its linear layer.
        trunk: see :func:`trunk_weights`.
        weights: of the net.
    """
    prefix, shapes = f"{model.base_model_prefix}.", model.state_dict(keep_vars=True)

    def value(name: str) -> torch.Tensor:
        whole = weights["head.weight"] if shapes[name] is head.weight else trunk[name.removeprefix(prefix)]
        return whole.to(shapes[name].dtype)

    return ComputedWeights({name: partial(value, name) for name in shapes}, shapes)
