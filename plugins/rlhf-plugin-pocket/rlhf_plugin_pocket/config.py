"""Configuration of the pocket data sets."""

from __future__ import annotations

from typing import ClassVar, Literal

from rlhf_core.config import ComponentConfig


class PocketConfig(ComponentConfig):
    """The built-in world; see docs/pocket.md."""

    name: str = "pocket"
    component: ClassVar[str] = "rlhf_plugin_pocket.source:PocketSource"
    downloads: ClassVar[bool] = False
    subset: Literal["assistant", "arithmetic", "two_digit_sums"] = "assistant"
    """``assistant`` has a gold score and preference pairs, ``arithmetic`` reference answers; so has ``two_digit_sums``,
    which is for larger models."""
