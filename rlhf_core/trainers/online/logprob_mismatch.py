"""On the first batch of every run: do engine and trainer mean the same logprobs?"""

from __future__ import annotations

from collections.abc import Mapping

TOLERANCE = 0.02
"""Mean absolute difference in nats that different kernels may cause in bfloat16; fp32 stays below 1e-4."""


def mismatch_warning(metrics: Mapping[str, float]) -> str | None:
    """Say what is wrong when behaviour and trainer logprobs differ before any update.

    Args:
        metrics: of the first update; ``drift/mean_abs`` in nats per token.
    """
    gap = metrics.get("drift/mean_abs")
    if gap is None or gap <= TOLERANCE:
        return None
    return (
        f"the rollout engine's logprobs differ from the trainer's by {gap:.3f} nats per token on the first batch "
        f"(at most {TOLERANCE} expected): importance ratios will be wrong. Likely causes: another sampling temperature "
        "or truncation in the engine (trainer.sampling), stale engine weights, dropout left on, or a different dtype "
        "(model.dtype). What cannot be fixed can be corrected for: trainer.importance.mode=truncate"
    )
