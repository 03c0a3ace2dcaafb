"""Which embedded model a model is, fine-tuned or not: what it is decides, not how it is called."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from rlhf_core.models.sources import resolve_model
from rlhf_core.types.errors import ModelError

SHAPE = (
    "model_type",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
)
"""Keys of ``config.json`` in which a fine-tuned model does not differ from what it was made of."""


EMBEDDED = ("pocket", "pocket-tools")
"""Models of the core for which algorithms have recipes."""


def embedded_of(path: str, names: Collection[str] = EMBEDDED) -> str | None:
    """The embedded model that a path names, or of which a local model has shape and vocabulary; None for others.

    Of a path that cannot be read the answer is None: what is wrong with it is said where it is loaded.

    Args:
        path: of a model.
        names: embedded models to compare it with.
    """
    if path in names:
        return path
    return next((name for name in EMBEDDED if name in names and _is_made_of(path, name)), None)


def _is_made_of(path: str, name: str) -> bool:
    try:
        source, shipped = resolve_model(path), Path(resolve_model(name).place)
        folder = Path(source.place)
        if not source.local or source.gguf or _shape(folder) != _shape(shipped):
            return False
        return _vocabulary(folder) == _vocabulary(shipped)
    except (ModelError, OSError, ValueError, KeyError, TypeError):
        return False


def _shape(folder: Path) -> dict[str, Any]:
    config = json.loads((folder / "config.json").read_text())
    return {key: config.get(key) for key in SHAPE}


def _vocabulary(folder: Path) -> dict[str, int]:
    return json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
