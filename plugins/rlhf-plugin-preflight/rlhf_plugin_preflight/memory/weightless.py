"""Models without weights: any configuration, at its full size, in no memory."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rlhf_core.models import LoadedModel, ModelConfig, resolve_model
from rlhf_core.models.load import context_length, failures_explained, load_options, wake_checkpointing
from rlhf_core.models.sources import Source
from rlhf_plugin_preflight.memory.four_bits import in_four_bits
from rlhf_plugin_preflight.memory.shapes import is_shape, shape_config

RECURRENT_OR_CAPPED = ("final_logit_softcapping", "logit_scale", "logits_scaling")
"""Settings of models that change their logits after the head."""


@dataclass(frozen=True)
class Described:
    """What a model path stands for, before its weights."""

    config: Any
    source: Source


def describe(config: ModelConfig) -> Described:
    """Read a model's configuration: of a shape by name, a folder (``config.json`` is enough), a file or the hub."""
    from transformers import AutoConfig

    if is_shape(config.path):
        return Described(shape_config(config.path), Source(path=config.path))
    folder = Path(config.path).expanduser()
    source = Source(str(folder)) if (folder / "config.json").is_file() else resolve_model(config.path)
    with failures_explained(config, source):
        return Described(AutoConfig.from_pretrained(source.path, **load_options(config, source)), source)


def meta_model(config: ModelConfig, layers: int | None = None) -> LoadedModel:
    """The model as :func:`~rlhf_core.models.load.load_policy` returns it, with ``layers`` decoder layers, without
    weights and without a tokenizer. Call it within :func:`rlhf_plugin_preflight.memory.unknown.without_values`."""
    described = describe(config)
    if layers is not None:
        _cut(described.config.get_text_config(), layers)
    model = on_meta(described, config)
    context = context_length(model, config)
    if config.gradient_checkpointing in (True, "offload"):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if config.quantize is not None:
        in_four_bits(model)
    model = with_adapters(model, config)
    _off_meta(model)
    model.eval()
    if config.gradient_checkpointing:
        wake_checkpointing(model, config.gradient_checkpointing)
    assume_structure(model)
    return LoadedModel(model, None, config.path, context)


def on_meta(described: Described, config: ModelConfig, *, generates: bool = True) -> Any:
    """The model on torch's device ``meta``; one that scores sequences where it does not generate."""
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    family: Any = AutoModelForCausalLM if generates else AutoModelForSequenceClassification
    with failures_explained(config, described.source), torch.device("meta"):
        return family.from_config(
            described.config,
            dtype=getattr(torch, config.dtype),
            attn_implementation=config.attention_or_eager,
            trust_remote_code=config.trust_remote_code,
        )


def with_adapters(model: Any, config: ModelConfig) -> Any:
    """The model with the adapters of its configuration, if there are any."""
    if config.lora is None:
        return model
    from rlhf_core.models.save import add_lora

    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft asks transformers by an earlier name
        return add_lora(model, config.lora)


def _cut(text: Any, layers: int) -> None:
    """Let a configuration have its first layers only."""
    text.num_hidden_layers = layers
    if getattr(text, "layer_types", None):
        text.layer_types = text.layer_types[:layers]


def _off_meta(model: torch.nn.Module) -> None:
    """Put every tensor on the CPU, where operations choose their kernels as a run's do; tied ones stay tied."""
    moved: dict[int, Any] = {}

    def empty(tensor: Any) -> Any:
        if id(tensor) not in moved:
            new = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
            trained = isinstance(tensor, torch.nn.Parameter)
            moved[id(tensor)] = torch.nn.Parameter(new, requires_grad=tensor.requires_grad) if trained else new
        return moved[id(tensor)]

    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is not None:
                    tensors[name] = empty(tensor)


def assume_structure(model: Any) -> None:
    """Say which forwards the model allows, as if tried: packing where attention is torch's, every layer keeps keys and
    values, and no setting changes the logits after the head."""
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer

    from rlhf_core.models import last_token, split_lm_head
    from rlhf_core.models.layers import packing, trunk_and_head
    from rlhf_core.training import forward

    base = trunk_and_head.base_model(model)
    parts = split_lm_head(model)
    text = base.config.get_text_config()
    is_split = parts is not None and all(getattr(text, name, None) in (None, 1.0) for name in RECURRENT_OR_CAPPED)
    keeps_keys = all(isinstance(layer, DynamicLayer) for layer in DynamicCache(config=text).layers)
    packs = is_split and keeps_keys and base.config._attn_implementation == "sdpa"
    if packs:
        packing.register()
        base.set_attn_implementation(packing.NAME)
    trunk_and_head._linear_heads[base] = is_split
    forward._structures[base] = forward.Structure(is_split, False, packs)
    if parts is not None:
        last_token._known[trunk_and_head.base_model(parts.trunk)] = packs
