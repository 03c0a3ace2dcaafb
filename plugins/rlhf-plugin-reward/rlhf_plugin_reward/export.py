"""A net's weights as files have them: adapters folded in, one weight after the other.

Nothing is asked of the net's own weights, which may be shards: whole ones are looked up by name.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from rlhf_core.distributed import ComputedWeights, on_demand
from rlhf_core.models import base_model


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
