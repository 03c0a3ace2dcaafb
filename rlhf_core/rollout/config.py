"""The native engine's options."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from rlhf_core.config.base import ComponentConfig


class NativeRolloutConfig(ComponentConfig):
    """Samples with the policy itself, in process. Works with any transformers causal language model."""

    name: str = "native"
    component: ClassVar[str] = "rlhf_core.rollout.native:NativeEngine.from_config"
    max_concurrent: int = Field(256, ge=1)
    """Most completions decoded together; the others wait, prompts of like length together, and enter as these end."""
    max_batch_tokens: int | None = Field(None, ge=1)
    """Most cached positions (prompt + ``max_tokens``, over the completions decoded together); bounds memory."""
