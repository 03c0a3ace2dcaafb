"""What a model's files take."""

from __future__ import annotations

from pathlib import Path

from rlhf_core.models import ModelError, resolve_model


def weight_file_bytes(path: str) -> int | None:
    """Of a local model's weights; None where they are not here."""
    try:
        source = resolve_model(path)
    except ModelError:  # a component's path need not be a model's
        return None
    if not source.local:
        return None
    return sum(file.stat().st_size for file in Path(source.path).glob("*.safetensors")) or None
