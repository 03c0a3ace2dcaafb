"""The formulas of PPO that need no network, in float64. Suffix ``_T``: tokens that the policy chose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rlhf_plugin_grpo.advantage import rounding

Doubles = npt.NDArray[np.float64]


def gae(rewards_T: Any, values_T1: Any, gamma: float = 1.0, gae_lambda: float = 0.95) -> Doubles:
    r"""Generalised advantages of one episode (Schulman et al. 2016, eq. 16).

    .. math:: \delta_t = r_t + \gamma V_{t+1} - V_t, \qquad A_t = \delta_t + \gamma \lambda A_{t+1}

    ``values_T1`` are those of the state before each token and after the last one: 0 if the episode ended there.
    Advantages ``[T]`` added to the values are the returns that the critic learns.
    """
    rewards, values = np.asarray(rewards_T, np.float64), np.asarray(values_T1, np.float64)
    deltas = rewards + gamma * values[1:] - values[:-1]
    advantages, later = np.zeros_like(deltas), 0.0
    for t in range(len(deltas) - 1, -1, -1):
        later = deltas[t] + gamma * gae_lambda * later
        advantages[t] = later
    return advantages


def whitened(rows: Sequence[Doubles], least: float = 0.0) -> list[Doubles]:
    """Subtract the mean of all numbers in all rows and divide by their standard deviation; all 0 where that is rounding
    of the largest number, or up to ``least``."""
    flat = np.concatenate(rows) if rows else np.zeros(0)
    if not flat.size:
        return list(rows)
    mean, std = flat.mean(), flat.std()
    if std <= max(least, rounding(float(np.abs(flat).max()))):
        return [np.zeros_like(row) for row in rows]
    return [(row - mean) / std for row in rows]


def explained_variance(values: Doubles, returns: Doubles) -> float | None:
    """``1 - var(returns - values) / var(returns)``: 1 is a perfect critic, 0 knows the mean; None without variance."""
    spread = float(np.var(returns)) if returns.size else 0.0
    return None if spread < 1e-12 else 1.0 - float(np.var(returns - values)) / spread


class KLController:
    r"""Steers a KL coefficient towards a target (Ziegler et al. 2019, section 2.2; its code's form): for n completions
    :math:`\beta \leftarrow \beta (1 + e\,n / horizon)`, :math:`e = clip(KL / target - 1, -0.2, 0.2)`."""

    def __init__(self, coefficient: float, target: float | None = None, horizon: float = 10_000) -> None:
        self.coefficient, self.target, self.horizon = coefficient, target, horizon

    def observe(self, kl: float, completions: int) -> None:
        """Go on from the mean KL of a batch of completions."""
        if self.target is not None:
            error = min(0.2, max(-0.2, kl / self.target - 1))
            self.coefficient *= 1 + error * completions / self.horizon
