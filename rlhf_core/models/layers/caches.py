"""What a model's key-value cache holds."""

from __future__ import annotations

from typing import Any

from transformers.cache_utils import DynamicLayer


def keys_and_values_only(cache: Any) -> bool:
    """Whether no layer has a recurrent state."""
    return all(isinstance(layer, DynamicLayer) and not hasattr(layer, "recurrent_states") for layer in cache.layers)
