"""Models on disk in Hugging Face form, safetensors only; low-rank adapters through peft (Hu et al. 2021, "LoRA")."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import Parameter

from rlhf_core.models.adapters import (
    GradientDropout,
    adapted_modules,
    check_merged,
    check_tied,
    linear_layers,
    plain_name,
)
from rlhf_core.models.four_bits import dequantized
from rlhf_core.models.modality import modality_of
from rlhf_core.models.slices import has_meta_weights, is_converted, remember, stored_in, weight_files
from rlhf_core.models.tensor_files import (
    ComputedWeights,
    check_finite,
    entries,
    finite,
    is_lazy,
    load_tensors,
    write_model_files,
)
from rlhf_core.types.errors import ModelError, error_line

if TYPE_CHECKING:
    from rlhf_core.models.config import LoraSettings


def add_lora(model: Any, settings: LoraSettings) -> Any:
    """Freeze the model and attach trainable adapters; they start at zero, so the outputs do not change.

    Raises:
        ModelError: no such layers, or a matrix that the model uses twice.
    """
    layers = linear_layers(model)
    linear = layers if settings.target_modules == "all-linear" else None
    try:
        adapted = _with_adapters(model, settings, linear)
        kept = {n.removesuffix(".weight") for n in adapted_modules(adapted)}
        if linear and kept != linear:  # peft takes some names for those of experts, as they were before they were fused
            adapted = _with_adapters(adapted.unload(), settings, linear & kept)
    except ValueError as error:
        raise ModelError(
            f"model.lora.target_modules {settings.target_modules!r} cannot be used",
            why=str(error).split("\n")[0],
            fix=f"use all-linear, or some of {', '.join(sorted({name.rpartition('.')[2] for name in layers}))}",
        ) from error
    check_tied(adapted)
    if any(getattr(m, "gradient_checkpointing", False) for m in model.modules()):
        adapted.enable_input_require_grads()
    return adapted


def _with_adapters(model: Any, settings: LoraSettings, linear: set[str] | None) -> Any:
    from peft import LoraConfig, get_peft_model

    given = settings.target_modules if linear is None else sorted(linear)
    config = LoraConfig(
        r=settings.r,
        lora_alpha=settings.alpha,  # pyright: ignore[reportArgumentType]
        lora_dropout=settings.dropout,
        use_rslora=settings.rslora,
        use_dora=settings.dora,
        modules_to_save=list(settings.modules_to_save) or None,
        target_modules=given if isinstance(given, str) else list(given),
        task_type="CAUSAL_LM",
    )
    adapted = get_peft_model(model, config)
    for layer in adapted_modules(adapted).values() if settings.dropout else ():
        layer.lora_dropout["default"] = GradientDropout(settings.dropout)
    return adapted


def merge_adapter(model: Any, folder: str) -> Any:
    """The model with an adapter's product added to its weights, bit for bit as the run that trained it saves them."""
    from peft import PeftModel

    try:
        adapted = PeftModel.from_pretrained(model, folder)
    except Exception as error:  # a damaged file, a wrong shape, layers that are not there
        raise ModelError(
            f"adapter '{folder}' does not fit its model",
            why=error_line(error),
            fix="give the model that it was trained on as base_model_name_or_path of adapter_config.json",
        ) from error
    weights = adapted.state_dict()
    check_finite({name: weight for name, weight in weights.items() if "lora_" in name}, folder)
    merged = dict(merged_weights(adapted, weights))
    check_merged(adapted, merged)
    base = adapted.unload()
    base.load_state_dict(merged)
    return base.requires_grad_(True)


ADAPTER = "adapter"
"""Folder of the adapter inside a final model."""


def is_peft(model: Any) -> bool:
    """True for a peft-wrapped model."""
    return hasattr(model, "peft_config") and hasattr(model, "merge_and_unload")


def save_model(
    model: Any, tokenizer: Any, folder: Path, weights: Mapping[str, Any] | None = None, *, merge: bool = False
) -> None:
    """See :meth:`rlhf_core.models.load.LoadedModel.save`. The model in memory is not touched, not even by rounding."""
    folder.mkdir(parents=True, exist_ok=True)
    state = model.state_dict() if weights is None else weights
    if is_peft(model) and merge:
        save_adapter(model, folder / ADAPTER, state)
        merged = merged_weights(model, dequantized(model, state))
        if not is_lazy(merged) and all(type(p) is Parameter for p in model.parameters()):
            check_merged(model, merged)
        model, state = model.get_base_model(), merged
    if is_peft(model):
        with _quiet():
            model.save_pretrained(folder, state_dict=adapter_weights(state))
    else:
        write_transformer(model, state, folder)
    tokenizer.save_pretrained(folder)
    modality = modality_of(tokenizer)
    if modality is not None:
        modality.save(folder)


def save_adapter(model: Any, folder: Path, weights: Mapping[str, Any]) -> None:
    """Write a peft model's adapter, its base named as the user did; a tokenizer beside it would resize the base's."""
    with _quiet():
        model.save_pretrained(folder, state_dict=adapter_weights(weights), save_embedding_layers=False)
    (folder / "README.md").unlink(missing_ok=True)  # peft's own names the path that the base was loaded from
    base, revision = getattr(model, "trained_from", (None, None))
    if base is not None:
        file = folder / "adapter_config.json"
        settings = {**json.loads(file.read_text()), "base_model_name_or_path": base, "revision": revision}
        file.write_text(json.dumps(settings, indent=2, sort_keys=True))


def merged_weights(model: Any, weights: Mapping[str, Any]) -> ComputedWeights:
    """A peft model's weights by their original names, ``W + scale B A``, computed when they are looked up."""
    layers: Mapping[str, Any] = adapted_modules(model)
    paths = {id(m): n for n, m in model.named_modules()}

    def merged(name: str, stored: str) -> Any:
        weight, module = weights[stored], layers.get(name)
        for adapter in () if module is None else module.active_adapters:
            weight = weight + _delta(module, paths[id(module)], adapter, weights).to(weight)
            if adapter in getattr(module, "lora_magnitude_vector", ()):
                length = weights[f"{paths[id(module)]}.lora_magnitude_vector.{adapter}.weight"]
                dim = 0 if getattr(module, "fan_in_fan_out", False) else 1
                weight = weight * (length.to(weight) / torch.linalg.norm(weight, dim=dim)).unsqueeze(dim)
        return weight

    stored = {plain_name(k): k for k in weights if ".lora_" not in k and ".original_module." not in k}
    return ComputedWeights.of(weights, stored, merged)


def adapter_weights(weights: Mapping[str, Any]) -> dict[str, Any]:
    """A peft model's weights, of which peft writes its adapters'; where a look-up gathers, those alone."""
    kept = [n for n in weights if "lora_" in n or ".modules_to_save." in n or not is_lazy(weights)]
    return {name: finite(name, weights[name]) for name in kept}


def write_transformer(model: Any, weights: Mapping[str, Any], folder: Path) -> None:
    """Write a transformers model as its ``save_pretrained`` does."""
    tied: Mapping[str, str] = getattr(model, "all_tied_weights_keys", None) or {}
    left_out = {n for n, source in tied.items() if source in weights} | set(model._keys_to_ignore_on_save or ())
    tensors = entries(weights, [name for name in weights if name not in left_out]) if is_lazy(weights) else []
    if not tensors or is_converted(model):
        state = {name: finite(name, weight) for name, weight in weights.items()}
        for name, source in tied.items():
            if source in state:
                state[name] = state[source]  # gathered one by one, tied weights come as two
        with _quiet():
            model.save_pretrained(folder, state_dict=state)
        return
    with _quiet():
        model.save_pretrained(folder, state_dict={tensors[0].name: torch.zeros(1)})  # for the files beside the weights
    (folder / "model.safetensors").unlink()
    write_model_files(folder, tensors)


def _delta(module: Any, name: str, adapter: str, full: Mapping[str, Any]) -> Any:
    """What an adapter adds, ``(alpha / r) B A``, from the whole weights: the module's own may be a shard."""
    down, up = (full.get(f"{name}.lora_{part}.{adapter}.weight") for part in "AB")
    if down is None or up is None:
        return module.get_delta_weight(adapter)  # an embedding, or more than a product
    if (experts := getattr(module, "num_experts", 1)) > 1:  # one product for each, as peft lays them out
        down, up = down.reshape(experts, -1, down.shape[-1]), up.reshape(up.shape[0], -1, experts)
        form = "ore,eri->eoi" if module._did_swap_in_out_features else "ore,eri->eio"
        return torch.einsum(form, up, down) * module.scaling[adapter]
    product = up @ down
    return (product.T if getattr(module, "fan_in_fan_out", False) else product) * module.scaling[adapter]


def load_weights(model: Any, folder: Path) -> None:
    """Load a checkpoint's weights into a model of the same shape, bit for bit."""
    if is_peft(model):
        from peft import set_peft_model_state_dict

        set_peft_model_state_dict(model, load_tensors(folder / "adapter_model.safetensors"))
        return
    if has_meta_weights(model):
        _check_fit(folder, remember(model, stored_in(weight_files(folder))), [])
        return
    state: dict[str, Any] = {}
    for shard in sorted(folder.glob("model*.safetensors")):  # a modality keeps files of its own beside them
        state |= load_tensors(shard)
    result = model.load_state_dict(state, strict=False)
    tied = set(getattr(model, "all_tied_weights_keys", None) or getattr(model, "_tied_weights_keys", None) or ())
    _check_fit(folder, [k for k in result.missing_keys if k not in tied], result.unexpected_keys)


def _check_fit(folder: Path, missing: Sequence[str], unexpected: Sequence[str]) -> None:
    if missing or unexpected:
        raise ModelError(
            f"checkpoint '{folder}' does not fit the model",
            why=f"missing {missing[:3]}, unexpected {list(unexpected)[:3]}",
            fix="resume with the model it was made with",
        )


@contextlib.contextmanager
def _quiet() -> Any:
    from transformers.utils import logging as hf

    was = hf.is_progress_bar_enabled()
    hf.disable_progress_bar()
    try:
        yield
    finally:
        if was:
            hf.enable_progress_bar()
