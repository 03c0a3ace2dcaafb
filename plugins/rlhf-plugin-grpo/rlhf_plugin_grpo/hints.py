"""What keys of courses and papers are called here; the core asks for a key that it does not know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

WORDS: Mapping[str, tuple[str, str]] = {
    "eps": ("epsilon", ""),
    "advantage_eps": ("epsilon", ""),
    "normalize_by_std": ("scale", " (std or none)"),
    "use_std_normalization": ("scale", " (std or none)"),
}
"""Key -> setting of the advantage, and its values."""


def of_advantage(key: str, value: Any, registry: Any, chosen: Mapping[str, str]) -> str:
    """``"eps is advantage.epsilon here"`` where the run's advantage has such a setting; "" otherwise."""
    setting, values = WORDS.get(key, ("", ""))
    fields = registry.load("advantage", chosen.get("advantage", "group_norm")).model_fields
    return f"{key} is advantage.{setting} here{values}" if setting in fields else ""
