"""On-policy distillation as an algorithm."""

from __future__ import annotations

from typing import Any

from rlhf_plugin_algorithms.signals import Scored, Signal, Signals


class Distill:
    """``kl`` at every token that the policy chose; the Config's teacher says from whom."""

    def __init__(self, config: Any) -> None:
        self.config = config

    def signals(self, scored: Scored) -> Signals:
        """Every rollout teaches, whatever its score."""
        return Signals([Signal("kl", [1.0] * len(scored.rollouts))])
