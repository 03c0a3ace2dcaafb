"""The core's agent: one prompt, one completion."""

from __future__ import annotations

from typing import ClassVar

from rlhf_core.plugins.component import ComponentConfig


class SingleTurnConfig(ComponentConfig):
    """Answer each prompt once."""

    name: str = "single_turn"
    component: ClassVar[str] = "rlhf_core.training.generation:SingleTurnAgent"
