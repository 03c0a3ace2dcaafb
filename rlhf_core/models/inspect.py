"""What a model is, from its configuration, its tokenizer and the shapes of its weights; none of them is loaded."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_core.models.config import ModelConfig
from rlhf_core.models.load import (
    check_generates,
    check_vocabulary,
    context_length,
    explain_failure,
    load_options,
    load_tokenizer,
    torch_dtype,
)
from rlhf_core.models.sources import Source, resolve_model
from rlhf_core.types.errors import ModelError


@dataclass(frozen=True)
class ModelFacts:
    """A model that was looked at."""

    architecture: str
    parameters: int
    trainable: int
    weight_bytes: int
    """Of all weights, in the precision in which they are held."""
    trainable_bytes: int
    vocabulary: int
    context: int
    """Prompt + completion tokens."""
    tokenizer: Any
    weights_seen: bool
    """False for a hub id whose weights are not here yet: then they were not looked at."""


def inspect_model(config: ModelConfig, *, generates: bool = True) -> ModelFacts:
    """Read configuration and tokenizer, build the model without memory, and compare it with the shapes on disk."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

    family: Any = AutoModelForCausalLM if generates else AutoModelForSequenceClassification
    source = resolve_model(config.path)
    tokenizer = load_tokenizer(config)
    try:
        described: Any = AutoConfig.from_pretrained(source.place, **load_options(config, source))
        with torch.device("meta"):
            model: Any = family.from_config(
                described,
                dtype=torch_dtype(config.dtype),
                attn_implementation=config.attention,
                trust_remote_code=config.trust_remote_code,
            )
    except Exception as error:  # a configuration can be wrong in as many ways as there are architectures
        raise explain_failure(error, config, source, "model") from error
    if generates:
        check_generates(model, config.path)
    check_vocabulary(model, tokenizer, config.path)
    context = context_length(model, config)
    weights_seen = _check_shapes(model, config, source)
    if config.lora is not None:
        from rlhf_core.models.save import add_lora

        with torch.device("meta"), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # peft asks transformers by an earlier name
            model = add_lora(model, config.lora)
    parameters = list(model.parameters())
    trained = [p for p in parameters if p.requires_grad]
    return ModelFacts(
        architecture=str(getattr(described, "model_type", type(model).__name__)),
        parameters=sum(p.numel() for p in parameters),
        trainable=sum(p.numel() for p in trained),
        weight_bytes=sum(p.numel() * p.element_size() for p in parameters),
        trainable_bytes=sum(p.numel() * p.element_size() for p in trained),
        vocabulary=int(model.get_input_embeddings().weight.shape[0]),
        context=context,
        tokenizer=tokenizer,
        weights_seen=weights_seen,
    )


def _check_shapes(model: Any, config: ModelConfig, source: Source) -> bool:
    """Compare the shapes in the files' headers with the model's; False where there is no file to look at."""
    from safetensors import safe_open

    if source.gguf:
        return True
    files = _weight_files(source, config.revision)
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    for file in files:
        with safe_open(str(file), "np") as weights:
            for name in set(weights.keys()) & expected.keys():
                shape = tuple(weights.get_slice(name).get_shape())
                if shape != expected[name]:
                    raise ModelError(
                        f"'{config.path}': weight {name} has shape {list(shape)}, but config.json describes "
                        f"{list(expected[name])}",
                        where=str(file),
                        why="config.json and weights belong to different models",
                        fix="copy or download the folder again",
                    )
    return bool(files)


def _weight_files(source: Source, revision: str | None) -> list[Path]:
    """The model's safetensors files that are on this machine."""
    if source.local:
        return sorted(Path(source.place).glob("model*.safetensors"))
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(source.place, "model.safetensors", revision=revision)
    return [Path(cached)] if isinstance(cached, str) else []
