"""The native engine's options."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from rlhf_core.config.base import ComponentConfig

if TYPE_CHECKING:
    from rlhf_core.context import BuildContext
    from rlhf_core.rollout.native import NativeEngine


class NativeRolloutConfig(ComponentConfig):
    """Samples with the policy itself, in process. Works with any transformers causal language model."""

    name: str = "native"
    max_concurrent: int = Field(256, ge=1)
    """Most completions decoded together; the others wait, prompts of like length together, and enter as these end."""
    max_batch_tokens: int | None = Field(None, ge=1)
    """Most cached positions (prompt + ``max_tokens``, over the completions decoded together); bounds memory."""

    def build(self, ctx: BuildContext) -> NativeEngine:
        """Return an engine over the policy's own weights."""
        from rlhf_core.rollout.native import NativeEngine

        return NativeEngine(
            ctx.policy.model, ctx.policy.tokenizer, ctx.policy.context, self.max_concurrent, self.max_batch_tokens
        )
