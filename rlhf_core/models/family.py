"""Whether a model is the pocket model, fine-tuned or not: what it is decides, not how it is called."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rlhf_core.errors import ModelError
from rlhf_core.models.sources import resolve_model

SHAPE = (
    "model_type",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
)
"""Keys of ``config.json`` in which a fine-tuned model does not differ from what it was made of."""


def is_pocket(path: str) -> bool:
    """Whether a path names the pocket model or a local model with its shape and its vocabulary.

    Of a path that cannot be read the answer is no: what is wrong with it is said where it is loaded.
    """
    if path == "pocket":
        return True
    try:
        source, shipped = resolve_model(path), Path(resolve_model("pocket").place)
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
