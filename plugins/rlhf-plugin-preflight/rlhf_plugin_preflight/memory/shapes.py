"""Published shapes of models by name, and shapes spelled out, for plans of models that are not at hand."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rlhf_core.config import did_you_mean
from rlhf_core.models import ModelError

PREFIX = "shape:"
FAMILIES = ("llama", "gpt2", "qwen2", "qwen3", "mistral")
"""Architectures that a shape can be spelled out for; the first is the default."""


class Shape(NamedTuple):
    family: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    intermediate: int
    vocab: int
    context: int
    tied: bool = False
    head_dim: int = 0
    """0 is ``hidden / heads``."""


SHAPES: Mapping[str, Shape] = {
    name: Shape(**sizes) for name, sizes in tomllib.loads(Path(__file__).with_suffix(".toml").read_text()).items()
}
"""From the config.json that each was published with."""


def is_shape(path: str) -> bool:
    """Whether a model path is the name of a shape, or a shape spelled out (``shape:layers=32,hidden=4096``)."""
    return path in SHAPES or path.startswith(PREFIX)


def shape_config(path: str) -> Any:
    shape = SHAPES[path] if path in SHAPES else _spelled(path.removeprefix(PREFIX))
    return _config(shape)


def _spelled(text: str) -> Shape:
    if text in SHAPES:
        return SHAPES[text]
    sizes: dict[str, int] = {}
    family, known = FAMILIES[0], [name for name in Shape._fields if name != "family"]
    for part in text.split(","):
        name, _, value = part.partition("=")
        if name == "family" and value in FAMILIES:
            family = value
            continue
        if name not in known or not value.isdigit():
            near = f"families are {', '.join(FAMILIES)}" * (name == "family")
            near = near or did_you_mean(name, [*known, *SHAPES], limit=1)
            raise ModelError(
                f"'{PREFIX}{text}' is not a shape: '{part}' cannot be read",
                why=near or f"sizes are {', '.join(known)}; names are {', '.join(SHAPES)}",
                fix=f"--model {PREFIX}layers=32,hidden=4096,heads=32,kv_heads=8,intermediate=14336,vocab=128256",
            )
        sizes[name] = int(value)
    missing = [name for name in ("layers", "hidden", "heads", "vocab") if name not in sizes]
    if missing:
        raise ModelError(f"'{PREFIX}{text}' does not say {', '.join(missing)}", fix=f"add {missing[0]}=N")
    heads = sizes["heads"]
    defaults = {"kv_heads": heads, "intermediate": 4 * sizes["hidden"], "context": 4096, "tied": family == "gpt2"}
    fields: dict[str, Any] = {**defaults, **sizes}
    fields["tied"] = bool(fields["tied"])
    shape = Shape(family, **fields)
    _check(shape, text)
    return shape


def _check(shape: Shape, text: str) -> None:
    wrong = ""
    if min(shape.layers, shape.hidden, shape.heads, shape.kv_heads, shape.intermediate, shape.vocab, shape.context) < 1:
        wrong = "every size must be at least 1"
    elif shape.hidden % shape.heads:
        wrong = f"{shape.heads} heads do not divide hidden size {shape.hidden}"
    elif shape.heads % shape.kv_heads:
        wrong = f"{shape.kv_heads} key/value heads do not divide {shape.heads} heads"
    elif shape.family == "gpt2" and (shape.kv_heads != shape.heads or not shape.tied):
        wrong = "a gpt2 has as many key/value heads as heads, and a tied head"
    elif shape.hidden // shape.heads % 2 and shape.family != "gpt2":
        wrong = f"a head has {shape.hidden // shape.heads} dimensions; rotary embeddings need an even number"
    elif max(shape.hidden, shape.intermediate, shape.vocab) > 1 << 24 or shape.layers > 1000:
        wrong = "the largest values are 16,777,216 for a width and 1,000 layers"
    if wrong:
        raise ModelError(f"'{PREFIX}{text}' is not the shape of a model", why=wrong, fix="change the size")


def _config(shape: Shape) -> Any:
    from transformers import AutoConfig

    more: dict[str, Any] = {
        "num_key_value_heads": shape.kv_heads,
        "intermediate_size": shape.intermediate,
        "tie_word_embeddings": shape.tied,
        "head_dim": shape.head_dim or shape.hidden // shape.heads,
    }
    return AutoConfig.for_model(
        shape.family,
        num_hidden_layers=shape.layers,
        hidden_size=shape.hidden,
        num_attention_heads=shape.heads,
        vocab_size=shape.vocab,
        max_position_embeddings=shape.context,
        **({"n_inner": shape.intermediate} if shape.family == "gpt2" else more),
    )
