"""Next-token cross-entropy."""

from __future__ import annotations

from rlhf_core.losses import LossOutput, TokenBatch


class CrossEntropy:
    """``loss_BT = -logprobs_BT``: the core masks prompts and padding and divides by the token count."""

    def __call__(self, batch: TokenBatch) -> LossOutput:
        """Return the unreduced loss in nats per token."""
        return LossOutput(-batch.logprobs_BT)
