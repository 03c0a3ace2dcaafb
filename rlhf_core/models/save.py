"""Models on disk in Hugging Face form, safetensors only."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_core.errors import ModelError
from rlhf_core.models.modality import modality_of

ADAPTER = "adapter"
"""Folder of the adapter inside a final model."""


def is_peft(model: Any) -> bool:
    """True for a peft-wrapped model."""
    return hasattr(model, "peft_config") and hasattr(model, "merge_and_unload")


def save_model(
    model: Any, tokenizer: Any, folder: Path, weights: Mapping[str, Any] | None = None, *, merge: bool = False
) -> None:
    """Write weights, config and tokenizer; with ``merge`` adapters are folded into the weights.

    The adapter itself then lies in ``adapter/``, for peft's ``AutoPeftModelForCausalLM`` and others. The model in
    memory is not touched, not even by rounding.

    Args:
        weights: the model's state dict as `Strategy.full_state` gathered it; None takes the model's own.
    """
    folder.mkdir(parents=True, exist_ok=True)
    state = dict(model.state_dict() if weights is None else weights)
    if is_peft(model) and merge:
        save_adapter(model, folder / ADAPTER, state)
        model, state = model.get_base_model(), merged_state(model, state)
    for name, source in (getattr(model, "all_tied_weights_keys", None) or {}).items():
        state[name] = state.get(source, state.get(name))  # gathered one by one, tied weights come as two
    with _quiet():
        model.save_pretrained(folder, state_dict=state)
    tokenizer.save_pretrained(folder)
    modality = modality_of(tokenizer)
    if modality is not None:
        modality.save(folder)


def save_adapter(model: Any, folder: Path, weights: Mapping[str, Any]) -> None:
    """Write the adapter of a peft model as peft does, its base named as the user named it.

    No tokenizer is beside it: peft would resize the base model's embeddings to it.

    Args:
        weights: of the whole peft model.
    """
    with _quiet():
        model.save_pretrained(folder, state_dict=dict(weights), save_embedding_layers=False)
    (folder / "README.md").unlink(missing_ok=True)  # peft's own names the path that the base was loaded from
    base, revision = getattr(model, "trained_from", (None, None))
    if base is not None:
        file = folder / "adapter_config.json"
        settings = {**json.loads(file.read_text()), "base_model_name_or_path": base, "revision": revision}
        file.write_text(json.dumps(settings, indent=2, sort_keys=True))


def merged_state(model: Any, weights: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Weights of a peft model under their original names, adapters added: ``W + (alpha / r) B A``."""
    full = model.state_dict() if weights is None else weights
    base_weights = {k.removeprefix("base_model.model."): v for k, v in full.items() if ".lora_" not in k}
    state = {k.replace(".base_layer.", "."): v for k, v in base_weights.items()}
    for name, module in model.get_base_model().named_modules():
        if hasattr(module, "get_delta_weight"):
            for adapter in module.active_adapters:
                weight = state[f"{name}.weight"]
                state[f"{name}.weight"] = weight + _delta(module, f"base_model.model.{name}", adapter, full).to(weight)
    return state


def _delta(module: Any, name: str, adapter: str, full: Mapping[str, Any]) -> Any:
    """What an adapter adds, ``(alpha / r) B A``, from the whole weights: the module's own may be a shard."""
    down, up = (full.get(f"{name}.lora_{part}.{adapter}.weight") for part in "AB")
    if down is None or up is None or getattr(module, "use_dora", {}).get(adapter):
        return module.get_delta_weight(adapter)  # an embedding, or more than a product
    product = up @ down
    return (product.T if getattr(module, "fan_in_fan_out", False) else product) * module.scaling[adapter]


def load_weights(model: Any, folder: Path) -> None:
    """Load a checkpoint's weights into a model of the same shape, bit for bit.

    Raises:
        ModelError: names are missing or unexpected.
    """
    from safetensors.torch import load_file

    if is_peft(model):
        from peft import set_peft_model_state_dict

        set_peft_model_state_dict(model, load_file(str(folder / "adapter_model.safetensors")))
        return
    from rlhf_core.models.slices import has_no_weights, remember, stored_in, weight_files

    if has_no_weights(model):
        _check_fit(folder, remember(model, stored_in(weight_files(folder))), [])
        return
    state: dict[str, Any] = {}
    for shard in sorted(folder.glob("model*.safetensors")):  # a modality keeps files of its own beside them
        state |= load_file(str(shard))
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
    """No progress bar for a single small file."""
    from transformers.utils import logging as hf

    was = hf.is_progress_bar_enabled()
    hf.disable_progress_bar()
    try:
        yield
    finally:
        if was:
            hf.enable_progress_bar()
