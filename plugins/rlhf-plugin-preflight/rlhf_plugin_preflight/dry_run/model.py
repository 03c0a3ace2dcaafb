"""What a model is, from its configuration, its tokenizer and the shapes of its weights; none of them is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_core.models import ModelConfig, ModelError, load_tokenizer, resolve_model
from rlhf_core.models.load import check_generates, check_vocabulary, context_length
from rlhf_plugin_preflight.memory.weightless import Described, describe, on_meta, with_adapters


@dataclass(frozen=True)
class ModelFacts:
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


def inspect_model(config: ModelConfig, *, generates: bool) -> ModelFacts:
    """Read configuration and tokenizer, build the model without memory, and compare it with the shapes on disk."""
    tokenizer, described = load_tokenizer(config), describe(config)
    if generates:
        check_generates(config, resolve_model(config.path))
    model = on_meta(described, config, generates=generates)
    check_vocabulary(model, tokenizer, config.path)
    context = context_length(model, config)
    weights_seen = _check_shapes(model, config, described)
    model = with_adapters(model, config)
    parameters = list(model.parameters())
    trained = [p for p in parameters if p.requires_grad]
    return ModelFacts(
        architecture=str(getattr(described.config, "model_type", type(model).__name__)),
        parameters=sum(p.numel() for p in parameters),
        trainable=sum(p.numel() for p in trained),
        weight_bytes=sum(p.numel() * p.element_size() for p in parameters),
        trainable_bytes=sum(p.numel() * p.element_size() for p in trained),
        vocabulary=int(model.get_input_embeddings().weight.shape[0]),
        context=context,
        tokenizer=tokenizer,
        weights_seen=weights_seen,
    )


def _check_shapes(model: Any, config: ModelConfig, described: Described) -> bool:
    """Compare the shapes in the files' headers with the model's; False where there is no file to look at."""
    from safetensors import safe_open

    files = _weight_files(described, config.revision)
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


def _weight_files(described: Described, revision: str | None) -> list[Path]:
    """The model's safetensors files that are on this machine."""
    source = described.source
    if source.local:
        return sorted(Path(source.path).glob("model*.safetensors"))
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(source.path, "model.safetensors", revision=revision)
    return [Path(cached)] if isinstance(cached, str) else []
