"""Compares the logprobs of engine and trainer in each step (training-inference mismatch), from values that the update
has already computed."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rlhf_core.types.errors import RlhfError

log = logging.getLogger("rlhf")

DRIFT_SPREAD = ("_drift/squares", "_drift/products", "_drift/lengths")
"""Over sequences: d * d, d * t and t * t of summed drift d and tokens t. A name that begins with ``_`` is a sum for
the trainer, and no metric."""
TOLERANCE = 0.02
"""Mean absolute difference in nats that different kernels may cause in bfloat16; fp32 stays below 1e-4."""
LEAST = 1e-3
"""Difference that is never worth a word, nats."""
GROWTH = 5.0
"""Times the difference of the first batch compared that later ones may reach, up to the tolerance."""
GROSS = 0.5
"""Difference at which a run cannot go on: a typical ratio of a token is off by 1.6."""
STANDARD_ERRORS = 4.0
"""By which a mean has to be above a limit."""
Action = Literal["stop", "warn", "off"]


@dataclass(frozen=True)
class Drift:
    """|engine's logprob - trainer's| per token.

    Example:
        Drift(mean=0.031, error=0.002)
    """

    mean: float
    error: float
    """Standard error of the mean; tokens of one sequence are not independent."""

    @classmethod
    def of(cls, sums: Mapping[str, tuple[float, float]]) -> Drift | None:
        """From the sums of one update; None where nothing was compared."""
        total, weight = sums.get("drift/mean_abs", (0.0, 0.0))
        if not weight or any(name not in sums for name in DRIFT_SPREAD):
            return None
        squares, products, lengths = (sums[name][0] for name in DRIFT_SPREAD)
        mean = total / weight
        scatter = squares - 2 * mean * products + mean**2 * lengths  # sum over sequences of (total - mean * tokens)^2
        return cls(mean, math.sqrt(max(0.0, scatter)) / weight)

    def above(self, limit: float) -> bool:
        """Whether more than chance puts the mean above a limit."""
        return self.mean - STANDARD_ERRORS * self.error > limit


class DriftCheck:
    """Warns when engine and trainer part, again whenever the difference has doubled; stops when it is gross.

    Args:
        action: ``stop``, ``warn`` (never stop) or ``off``.
        counts: ``drift_warnings``.
    """

    def __init__(self, action: Action, counts: Counter[str]) -> None:
        self.action, self.counts = action, counts
        self.first: float | None = None
        """Mean of the first batch compared."""
        self.compared = False
        self.warned = 0.0
        """Mean at the last warning."""

    def __call__(self, step: int, drift: Drift | None, staleness: int = 0) -> None:
        """Judge one update; every rank has the same numbers.

        Args:
            step: the step.
            drift: measured before the update.
            staleness: updates since the weights that sampled; from 1 on policies differ rightly, and only what is gross
                gets a warning.

        Raises:
            RlhfError: the difference is gross.
        """
        if drift is None or self.action == "off":
            return
        limit = GROSS if staleness else self._limit()
        if drift.above(limit) and drift.mean > 2 * self.warned:
            self.warned = drift.mean
            self.counts["drift_warnings"] += 1
            log.warning("%s", self._message(step, drift, limit, staleness))
        if not staleness and self.action == "stop" and drift.above(GROSS):
            raise RlhfError(
                f"step {step}: the rollout engine's logprobs are {drift.mean:.2f} nats per token from the trainer's",
                why=f"more than {GROSS:g} is not rounding: the completions are not from the policy that learns from "
                f"them. {self._cause()}",
                fix="repair the engine and resume from the last checkpoint; --set trainer.drift_check=warn goes on",
            )
        if not staleness and not self.compared:
            self.first, self.compared = drift.mean, True

    def _limit(self) -> float:
        return TOLERANCE if self.first is None else min(TOLERANCE, max(LEAST, GROWTH * self.first))

    def _message(self, step: int, drift: Drift, limit: float, staleness: int) -> str:
        if staleness:
            return (
                f"step {step}: the policy is {drift.mean:.2f} nats per token from the one that sampled, {staleness} "
                "updates ago. Either it learns too fast for rollouts that old (trainer.optimizer.learning_rate, "
                "trainer.rollouts.max_staleness), or what samples does not get the weights it says it has"
            )
        where = "" if self.compared else " on the first batch"
        return (
            f"step {step}: the rollout engine's logprobs differ from the trainer's by {drift.mean:.2g} +- "
            f"{drift.error:.1g} nats per token{where} (at most {limit:.2g} expected): importance ratios will be wrong. "
            f"{self._cause()}"
        )

    def _cause(self) -> str:
        if self.compared and self.first is not None and self.first <= TOLERANCE:
            return (
                f"They agreed to {self.first:.2g} before, so most likely the engine still samples from older weights: "
                "see that its weight sync arrives"
            )
        return (
            "Likely causes: another sampling temperature or truncation in the engine (trainer.sampling), stale engine "
            "weights, dropout left on, or a different dtype (model.dtype). What cannot be fixed can be corrected for: "
            "trainer.importance.mode=truncate"
        )

    def state_dict(self) -> dict[str, Any]:
        """What the next steps are compared with."""
        return {"first": self.first, "compared": self.compared, "warned": self.warned}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore it."""
        self.first, self.compared = state["first"], bool(state["compared"])
        self.warned = float(state["warned"])
