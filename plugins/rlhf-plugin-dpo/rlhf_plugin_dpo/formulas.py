"""Every pair loss as a formula over log-probabilities. Suffix: ``_B`` pairs.

``d`` is a difference of scores before beta, ``b`` is beta (with a schedule, one per pair), ``h`` a log ratio to
the reference policy; see :mod:`rlhf_plugin_dpo.loss_config` for papers and equations.
"""

from __future__ import annotations

import math

import torch
from torch.nn.functional import logsigmoid, relu

from rlhf_plugin_dpo.loss_config import Divergence

Beta = torch.Tensor | float
EXP_LIMIT = 40.0
"""Squares of exponentials beyond it would leave float32; a response that is so much less likely than under the
reference policy gets no further gradient."""


def score(h_B: torch.Tensor, divergence: Divergence, alpha: float = 0.5) -> torch.Tensor:
    """``f'(pi / ref)`` of an f-divergence, from ``h = log(pi / ref)`` (f-DPO, Wang et al. 2023, table 1)."""
    if divergence == "forward_kl":
        return 1 - torch.exp((-h_B).clamp(max=EXP_LIMIT))
    if divergence == "js":
        return math.log(2) + logsigmoid(h_B)
    if divergence == "alpha" and abs(alpha - 1) >= 1e-6:
        return (torch.exp(((alpha - 1) * h_B).clamp(max=EXP_LIMIT)) - 1) / (alpha - 1)
    return h_B


def smoothed(x_B: torch.Tensor, label_smoothing: float) -> torch.Tensor:
    """``-(1 - e) log sigmoid(x) - e log sigmoid(-x)``."""
    return -(1 - label_smoothing) * logsigmoid(x_B) - label_smoothing * logsigmoid(-x_B)


def hinge(d_B: torch.Tensor, b: Beta) -> torch.Tensor:
    """``max(0, 1 - b d)``."""
    return relu(1 - b * d_B)


def ipo(d_B: torch.Tensor, b: Beta) -> torch.Tensor:
    """``(d - 1 / (2 b))^2``."""
    return (d_B - 1 / (2 * b)) ** 2


def robust(d_B: torch.Tensor, b: Beta, e: float) -> torch.Tensor:
    """``(-(1 - e) log sigmoid(b d) + e log sigmoid(-b d)) / (1 - 2 e)``."""
    return (-(1 - e) * logsigmoid(b * d_B) + e * logsigmoid(-b * d_B)) / (1 - 2 * e)


def exo(d_B: torch.Tensor, b: Beta, e: float) -> torch.Tensor:
    """KL of ``(sigmoid(b d), sigmoid(-b d))`` from ``(1 - e, e)``."""
    x_B = b * d_B
    return torch.sigmoid(x_B) * (logsigmoid(x_B) - math.log1p(-e)) + torch.sigmoid(-x_B) * (
        logsigmoid(-x_B) - math.log(e)
    )


def discopop(d_B: torch.Tensor, b: Beta, tau: float) -> torch.Tensor:
    """``(1 - m) * -log sigmoid(b d) + m exp(-b d)``, ``m = sigmoid(b d / tau)``."""
    x_B = b * d_B
    mix_B = torch.sigmoid(x_B / tau)
    return -logsigmoid(x_B) * (1 - mix_B) + torch.exp((-x_B).clamp(max=EXP_LIMIT)) * mix_B


def nca(w_B: torch.Tensor, l_B: torch.Tensor, b: Beta) -> torch.Tensor:
    """``-log s(b w) - 1/2 log s(-b w) - 1/2 log s(-b l)`` of log ratios w and l."""
    return -logsigmoid(b * w_B) - 0.5 * logsigmoid(-b * w_B) - 0.5 * logsigmoid(-b * l_B)


def bco(w_B: torch.Tensor, l_B: torch.Tensor, b: Beta) -> torch.Tensor:
    """``-log s(b w) - log s(-b l)``."""
    return -logsigmoid(b * w_B) - logsigmoid(-b * l_B)


def sppo(w_B: torch.Tensor, l_B: torch.Tensor, b: Beta) -> torch.Tensor:
    """``(w - 1 / (2 b))^2 + (l + 1 / (2 b))^2``."""
    return (w_B - 0.5 / b) ** 2 + (l_B + 0.5 / b) ** 2


def apo_zero(w_B: torch.Tensor, l_B: torch.Tensor, b: Beta) -> torch.Tensor:
    """``1 - s(b w) + s(b l)``."""
    return 1 - torch.sigmoid(b * w_B) + torch.sigmoid(b * l_B)


def apo_down(w_B: torch.Tensor, l_B: torch.Tensor, b: Beta) -> torch.Tensor:
    """``s(b w) + 1 - s(b (w - l))``."""
    return torch.sigmoid(b * w_B) + 1 - torch.sigmoid(b * (w_B - l_B))


def log1mexp(x_B: torch.Tensor) -> torch.Tensor:
    """``log(1 - exp(x))`` for x < 0, without cancellation on either side of ``-log 2`` (Maechler 2012)."""
    near_B = x_B > -math.log(2)
    small_B = torch.where(near_B, x_B, torch.full_like(x_B, -1.0))  # each branch gets what its gradient can bear
    large_B = torch.where(near_B, torch.full_like(x_B, -1.0), x_B)
    return torch.where(near_B, torch.log(-torch.expm1(small_B)), torch.log1p(-torch.exp(large_B)))


def orpo(w_B: torch.Tensor, l_B: torch.Tensor, b: Beta) -> torch.Tensor:
    """``-b log sigmoid(log odds(w) - log odds(l))`` of mean log-probabilities w and l."""
    return -b * logsigmoid((w_B - l_B) - (log1mexp(w_B) - log1mexp(l_B)))
