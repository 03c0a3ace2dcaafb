r"""Importance weights of tokens that another policy sampled than the one whose gradient is taken.

Suffixes: ``_B`` sequences, ``_T`` completion tokens.
"""

from __future__ import annotations

from typing import Literal

import torch

LOG_LIMIT = 20.0
"""Logarithms of ratios are held within this distance of 0, so that no exponential overflows."""


def bounded_ratio(log_ratio: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Exponential of a log ratio that is first held within :data:`LOG_LIMIT` of 0, as verl does.

    Past the limit there is no gradient: the exponential would be infinite in float32 from 88 on, and 0 times infinity,
    wherever a clip or a mask takes the value away, is NaN.

    Args:
        log_ratio: any shape.

    Returns:
        ``(ratio, held)``; the second is True where the limit was in force.
    """
    return log_ratio.clamp(-LOG_LIMIT, LOG_LIMIT).exp(), log_ratio.detach().abs() > LOG_LIMIT


def importance_weights(
    old_logprobs_BT: torch.Tensor,
    behaviour_logprobs_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    *,
    mode: Literal["truncate", "mask"] = "truncate",
    level: Literal["token", "sequence"] = "token",
    cap: float = 2.0,
    low: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    r"""Weights for the loss of tokens drawn from :math:`\mu` when the update starts from :math:`\pi_{old}`.

    .. math:: r_t = \pi_{old}(o_t) / \mu(o_t), \qquad
        w_t = \min(r_t, cap) \;\text{(truncate)} \quad\text{or}\quad r_t\,[low \le r_t \le cap] \;\text{(mask)}

    Truncation is TIS (Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training"),
    masking MIS (Liu et al. 2025, "When speed kills stability"; with a lower bound IcePop). At level ``sequence`` r is
    the product over the sequence's tokens: unbiased before truncation, and far more varied.

    Args:
        old_logprobs_BT: of the policy from which the update starts.
        behaviour_logprobs_BT: of the policy that sampled, as its engine reported them.
        mask_BT: True where the policy chose the token; other places may hold anything finite.
        mode: what happens to ratios beyond the bounds: they become the bound, or 0.
        level: ``token`` or ``sequence``.
        cap: upper bound.
        low: lower bound; None sets none.

    Returns:
        ``(weights, ratios)``, both without gradient, ``[B, T]``, or ``[B, 1]`` for sequences.

    Example:
        >>> old, mu = torch.log(torch.tensor([[0.9, 0.1]])), torch.log(torch.tensor([[0.3, 0.2]]))
        >>> [round(w, 3) for w in importance_weights(old, mu, torch.ones(1, 2, dtype=torch.bool))[0][0].tolist()]
        [2.0, 0.5]
    """
    gap_BT = (old_logprobs_BT - behaviour_logprobs_BT).detach().float()
    if level == "sequence":
        gap_BT = torch.where(mask_BT, gap_BT, gap_BT.new_zeros(())).sum(-1, keepdim=True)
    ratios, _ = bounded_ratio(gap_BT)
    if mode == "truncate":
        return ratios.clamp(min=low, max=cap), ratios
    inside = (ratios <= cap) & (ratios >= (0.0 if low is None else low))
    return torch.where(inside, ratios, ratios.new_zeros(())), ratios


def effective_sample_size(mean_ratio: float, mean_square: float) -> float:
    r"""Share of the samples that weighted ones are worth (Kong 1992): :math:`(\sum r)^2 / (n \sum r^2)`.

    Args:
        mean_ratio: mean of the ratios.
        mean_square: mean of their squares.

    Returns:
        1 for equal ratios, towards 1/n if one outweighs all others.
    """
    return mean_ratio**2 / mean_square if mean_square > 0 else 0.0
