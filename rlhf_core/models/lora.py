"""Low-rank adapters through peft (Hu et al. 2021, "LoRA")."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlhf_core.types.errors import ModelError

if TYPE_CHECKING:
    from rlhf_core.models.config import LoraSettings


def add_lora(model: Any, settings: LoraSettings) -> Any:
    """Freeze the model and attach trainable adapters; they start at zero, so the outputs do not change.

    Args:
        model: a transformers causal LM.
        settings: rank, alpha (the adapter is scaled by alpha / r), dropout, and which linear layers.

    Returns:
        A peft model. The reference policy is this model with the adapter switched off.

    Raises:
        ModelError: ``target_modules`` matches no layer.
    """
    from peft import LoraConfig, get_peft_model

    targets = settings.target_modules if isinstance(settings.target_modules, str) else list(settings.target_modules)
    config = LoraConfig(
        r=settings.r,
        lora_alpha=settings.alpha,  # pyright: ignore[reportArgumentType]
        lora_dropout=settings.dropout,
        target_modules=targets,
        task_type="CAUSAL_LM",
    )
    try:
        adapted = get_peft_model(model, config)
    except ValueError as error:
        layers = sorted({n.rsplit(".", 1)[-1] for n, m in model.named_modules() if type(m).__name__ == "Linear"})
        raise ModelError(
            f"model.lora.target_modules {settings.target_modules!r} cannot be used",
            why=str(error).split("\n")[0],
            fix=f"use all-linear, or some of {', '.join(layers)}",
        ) from error
    if any(getattr(m, "gradient_checkpointing", False) for m in model.modules()):
        adapted.enable_input_require_grads()
    return adapted


def merge_adapter(model: Any, folder: str) -> Any:
    """The model with an adapter's product added to its weights, bit for bit as the run that trained it saves them.

    Raises:
        ModelError: the adapter cannot be read, or was trained on another model.
    """
    from peft import PeftModel

    from rlhf_core.models.save import merged_state

    try:
        adapted = PeftModel.from_pretrained(model, folder)
    except Exception as error:  # a damaged file, a wrong shape, layers that are not there
        text = str(error).strip().splitlines() or [""]
        raise ModelError(
            f"adapter '{folder}' does not fit its model",
            why=f"{type(error).__name__}: {text[0][:300]}",
            fix="give the model that it was trained on as base_model_name_or_path of adapter_config.json",
        ) from error
    merged = merged_state(adapted)
    base = adapted.unload()
    base.load_state_dict(merged)
    return base.requires_grad_(True)
