"""Models on disk in Hugging Face form, safetensors only."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from rlhf_core.errors import ModelError


def is_peft(model: Any) -> bool:
    """True for a peft-wrapped model."""
    return hasattr(model, "peft_config") and hasattr(model, "merge_and_unload")


def write_folder(model: Any, tokenizer: Any, folder: Path, *, merge: bool = False) -> None:
    """Write weights, config and tokenizer; with ``merge`` adapters are folded into the weights.

    The model in memory is left as it was.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if is_peft(model) and merge:
        model.merge_adapter()
        try:
            _write_base(model.get_base_model(), folder)
        finally:
            model.unmerge_adapter()
    else:
        with _quiet():
            model.save_pretrained(folder, safe_serialization=True)
    tokenizer.save_pretrained(folder)


def _write_base(base: Any, folder: Path) -> None:
    """Save the model under the adapters with its original weight names."""
    state = {k.replace(".base_layer.", "."): v for k, v in base.state_dict().items() if ".lora_" not in k}
    with _quiet():
        base.save_pretrained(folder, state_dict=state, safe_serialization=True)


def load_weights(model: Any, folder: Path) -> None:
    """Put a checkpoint's weights into a model of the same shape, bit for bit.

    Raises:
        ModelError: names are missing or unexpected.
    """
    from safetensors.torch import load_file

    if is_peft(model):
        from peft import set_peft_model_state_dict

        set_peft_model_state_dict(model, load_file(str(folder / "adapter_model.safetensors")))
        return
    state: dict[str, Any] = {}
    for shard in sorted(folder.glob("*.safetensors")):
        state |= load_file(str(shard))
    result = model.load_state_dict(state, strict=False)
    tied = set(getattr(model, "all_tied_weights_keys", None) or getattr(model, "_tied_weights_keys", None) or ())
    missing = [k for k in result.missing_keys if k not in tied]
    if missing or result.unexpected_keys:
        raise ModelError(f"checkpoint '{folder}' does not fit the model", why=f"missing {missing[:3]}, "
                         f"unexpected {list(result.unexpected_keys)[:3]}", fix="resume with the model it was made with")


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
