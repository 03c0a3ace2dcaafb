"""What low-rank adapters may be put on, what they train, and whether the model that is written computes the same."""

from __future__ import annotations

import logging
import math
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch

from rlhf_core.models.layers.trunk_and_head import agree, base_model, quiet
from rlhf_core.types.errors import ModelError

log = logging.getLogger("rlhf.models")
ROUTER = re.compile(r"(^|\.)(\w*router\w*|gate|\w+_gate)(\.|$)")
"""Names of what chooses experts."""
MERGED_ROUNDS = 10.0
"""A folded weight is rounded once more in every layer: logits may differ by so many times the tolerance."""


def plain_name(name: str) -> str:
    """A weight's name as it is without adapters."""
    wrappers = r"(\.(base_layer|original_module|modules_to_save\.default))+(?=\.|$)"
    return re.sub(wrappers, "", name.removeprefix("base_model.model."))


def has_experts(model: Any) -> bool:
    """Whether a model is a mixture of experts, by its configuration."""
    numbers = model.config.get_text_config().to_dict().items()
    return any("expert" in key and isinstance(value, int) and value > 1 for key, value in numbers)


def linear_layers(model: Any) -> set[str]:
    """Names of what ``all-linear`` means: linear layers without the head and, in a mixture of experts, the router;
    experts that are one tensor are none. Of Mamba, peft takes no ``out_proj``, and an
    adapter of ``dt_proj`` does nothing.
    """
    from transformers.pytorch_utils import Conv1D

    head, experts = base_model(model).get_output_embeddings(), has_experts(model)
    left_out = ("out_proj", "dt_proj") if "mamba" in model.config.model_type else ()
    named = {n for n, m in model.named_modules() if isinstance(m, torch.nn.Linear | Conv1D) and m is not head}
    return {n for n in named if n.rpartition(".")[2] not in left_out and not (experts and ROUTER.search(n))}


def adapted_modules(model: Any) -> dict[str, Any]:
    """Plain name of each adapted weight -> the peft layer that adapts it."""
    layers = ((n, m) for n, m in base_model(model).named_modules() if hasattr(m, "get_delta_weight"))
    return {plain_name(f"{n}.{getattr(m, 'parameter_name', 'weight')}"): m for n, m in layers}


def _tied_names(model: Any) -> dict[str, str]:
    """Plain names of weights that are other weights -> those."""
    tied: Mapping[str, str] = getattr(base_model(model), "all_tied_weights_keys", None) or {}
    return {plain_name(a): plain_name(b) for a, b in tied.items()}


def check_tied(model: Any) -> None:
    """Refuse adapters on a matrix that the model uses twice: it has one place in the final model, for two of them."""
    pairs = _tied_names(model)
    twins = pairs | {b: a for a, b in pairs.items()}
    trained = {plain_name(n) for n, p in model.named_parameters() if p.requires_grad}
    for name in sorted(twins.keys() & (adapted_modules(model).keys() | trained)):
        raise ModelError(
            f"model.lora adapts '{name}', and '{twins[name]}' is the same matrix",
            why="an adapter changes one use of the matrix; folded into it, as in the final model, it would change both",
            fix="leave it out of model.lora.target_modules and modules_to_save, or leave out model.lora to train all",
        )


class GradientDropout(torch.nn.Dropout):
    """Drops in passes with gradient only, whatever the module's mode: the model stays in eval mode."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Map ``input`` to one of its shape."""
        return torch.nn.functional.dropout(input, self.p, torch.is_grad_enabled())


def trained_parts(model: Any) -> dict[str, int]:
    """Kind of layer, such as ``q_proj`` or ``experts.down_proj`` -> its trained parameters; {} without adapters."""
    counts: Counter[str] = Counter()
    for name, layer in adapted_modules(model).items() if hasattr(model, "peft_config") else ():
        kind = re.sub(r"\.weight$", "", name).split(".")
        inner = layer.get_base_layer()
        rest = (p for n, p in layer.named_parameters() if not n.startswith("base_layer."))
        counts[".".join(kind[-1 if isinstance(inner, torch.nn.Linear | torch.nn.Embedding) else -2 :])] += sum(
            p.numel() for p in rest if p.requires_grad
        )
    for name, saved in model.named_parameters():
        owner, found, _ = name.partition(".modules_to_save.")
        counts.update({owner.rpartition(".")[2]: saved.numel()} if found else {})
    return dict(sorted(counts.items()))


def describe_trained(model: Any) -> str:
    """How much of a model is trained. Example: ``trained: 1,536 of 99,000 parameters (1.6 %): q_proj, v_proj``"""
    parts = trained_parts(model)
    total = sum(math.prod(getattr(p, "quant_state", p).shape) for p in model.parameters())  # of 4 bits two in a byte
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    text = f"trained: {trained:,} of {total:,} parameters ({trained / total:.2%})"
    if not hasattr(model, "peft_config"):
        return text
    return f"{text}: {', '.join(parts)}"


def check_merged(model: Any, merged: Mapping[str, Any]) -> None:
    """Refuse to write a model that computes otherwise than its adapters do: logits of one row are compared.

    Args:
        model: wrapped by peft, whole.
        merged: weights of the final model, by their plain names.

    Raises:
        ModelError: they differ by more than rounding.
    """
    base = base_model(model)
    pairs = _tied_names(model)
    stored = {n: p for n, p in base.named_parameters(remove_duplicate=False) if ".lora_" not in n}
    values = {n: merged.get(pairs.get(plain_name(n), plain_name(n))) for n in stored}
    lost = [name for name, value in values.items() if value is None]
    size = int(base.config.get_text_config().vocab_size)
    ids_BL = torch.tensor([[(37 * i + 11) % size for i in range(24)]], device=next(base.parameters()).device)
    try:
        with torch.no_grad(), quiet(model):
            want = base(input_ids=ids_BL, use_cache=False).logits
            with model.disable_adapter():
                given = {n: value.to(stored[n]) for n, value in values.items() if value is not None}
                got = torch.func.functional_call(
                    base, given, kwargs={"input_ids": ids_BL, "use_cache": False}, tie_weights=False
                ).logits
    except torch.OutOfMemoryError:
        log.warning("the final model was not compared with the policy: there is no memory for a second one")
        return
    if lost or not agree(got, want, model, MERGED_ROUNDS):
        gap = float((got - want).nan_to_num(0.0).abs().max())
        raise ModelError(
            f"the model with its adapters folded in is not the policy: logits of one row differ by up to {gap:.3g}",
            why=f"{', '.join(lost)} would be missing" if lost else "some adapted weights cannot be folded in",
            fix="the last checkpoint holds the adapters as they are; train with other model.lora.target_modules",
        )
