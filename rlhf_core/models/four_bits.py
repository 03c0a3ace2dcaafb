"""Frozen weights of 4 bits under adapters (QLoRA, Dettmers et al. 2023), through bitsandbytes."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from rlhf_core.models.tensor_files import ComputedWeights, Weights, is_lazy, like
from rlhf_core.types.errors import ModelError

if TYPE_CHECKING:
    from rlhf_core.models.config import ModelConfig

BLOCK = 64
"""Weights that share a scale."""


def quantization(config: ModelConfig) -> dict[str, Any]:
    """Arguments of ``from_pretrained`` beside others.

    Raises:
        ModelError: bitsandbytes is not installed.
    """
    if config.quantize is None:
        return {}
    if find_spec("bitsandbytes") is None:
        what = f"model.quantize {config.quantize} needs bitsandbytes"
        raise ModelError(what, fix="pip install 'rlhf-core[qlora]', or leave it out")
    from transformers import BitsAndBytesConfig

    computed: dict[str, Any] = {"bnb_4bit_use_double_quant": True, "bnb_4bit_compute_dtype": config.dtype}
    return {"quantization_config": BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", **computed)}


def settle(model: Any) -> None:
    """Let a model compute alike with and without a gradient, and be saved like any other.

    Raises:
        ModelError: it is on a CPU, where bitsandbytes unpacks rows wrongly that are not whole blocks.
    """
    for name, module in model.named_modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False  # bitsandbytes would compute in bfloat16 where none is needed
            if module.in_features % BLOCK and module.weight.device.type == "cpu":
                raise ModelError(
                    f"model.quantize cannot be used with this model on a CPU: '{name}' is {module.in_features} wide",
                    why=f"bitsandbytes unpacks rows there rightly only if their length is a multiple of {BLOCK}",
                    fix="take another model, or leave model.quantize out",
                )
    if getattr(model, "hf_quantizer", None) is not None:
        del model.hf_quantizer, model.config.quantization_config


def numbers(weight: Any) -> Any:
    """The numbers that a weight of 4 bits stands for; any other weight as it is."""
    if not hasattr(weight, "quant_state"):
        return weight
    from bitsandbytes.functional import dequantize_4bit

    return dequantize_4bit(weight.data, weight.quant_state)


def dequantized(model: Any, weights: Weights) -> Weights:
    """Weights by name, those of 4 bits as the numbers that they stand for; each is looked up when it is needed."""
    packed = {n: p for n, p in model.named_parameters() if hasattr(p, "quant_state")}
    kept = [n for n in weights if n not in packed and f"{n.partition('.weight.')[0]}.weight" not in packed]
    values = {n: partial(weights.__getitem__, n) for n in kept} | {n: partial(numbers, p) for n, p in packed.items()}
    shapes = {n: like(weights, n) for n in kept if is_lazy(weights)}
    for name, state in ((n, p.quant_state) for n, p in packed.items()):
        shapes[name] = packed[name].data.new_empty(state.shape, dtype=state.dtype, device="meta")
    return ComputedWeights(values, shapes if is_lazy(weights) else None) if packed else weights
