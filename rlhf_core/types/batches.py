"""Torch batches that the policy forward makes for a loss, and what a loss returns.

Suffixes: ``_B`` sequences of a micro-batch, ``_T`` completion tokens (right-padded grid), so ``loss_BT``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """What a token-level loss sees (``consumes = "token_advantages"`` or ``"labels"``).

    Every tensor has shape ``[B, T]`` over *completion* tokens only, right-padded; padded places hold
    finite values, and the core masks and divides afterwards.
    """

    logprobs_BT: torch.Tensor
    """Log-probability of each completion token under the policy being trained, with gradient."""
    mask_BT: torch.Tensor
    """Bool; True where the token counts."""
    advantages_BT: torch.Tensor | None = None
    """The estimator's, one per token; that of a completion stands at each of its tokens. None for ``labels``."""
    old_logprobs_BT: torch.Tensor | None = None
    """What the ratio is relative to: the policy's logprobs at the start of the step. With one update per step they are
    this forward's own, detached; a run never gives None. The engine's are ``behaviour_logprobs_BT``. No gradient."""
    ref_logprobs_BT: torch.Tensor | None = None
    """Under the reference policy, at the sampling temperature; None where nothing asks for it. No gradient."""
    behaviour_logprobs_BT: torch.Tensor | None = None
    """As the rollout engine reported them; for importance correction and the mismatch check. None for ``labels``."""
    entropy_BT: torch.Tensor | None = None
    """Entropy in nats of the policy's distribution at each place, with gradient. Every run gives it to every loss; None
    only in a batch that somebody makes without it, as in a test of a loss."""
    values_BT: torch.Tensor | None = None
    """The critic's value of the state before each token, with gradient; None without a critic, as the two below."""
    old_values_BT: torch.Tensor | None = None
    """The same when the rollout batch was estimated, or None. No gradient."""
    returns_BT: torch.Tensor | None = None
    """The critic's targets, or None."""


@dataclass(frozen=True, slots=True)
class PairBatch:
    """What a pair loss sees (``consumes = "pairs"``); all tensors have shape ``[B]``.

    For preference losses ``chosen_B`` is the summed completion logprob; for reward models it is the score.
    """

    chosen_B: torch.Tensor
    """Of the chosen side, with gradient."""
    rejected_B: torch.Tensor
    """Of the rejected side, with gradient."""
    ref_chosen_B: torch.Tensor | None = None
    """``chosen_B`` under the reference policy; None without one. No gradient."""
    ref_rejected_B: torch.Tensor | None = None
    """``rejected_B`` under the reference policy; None without one. No gradient."""
    margin_B: torch.Tensor | None = None
    """By how much the chosen side was preferred, as the rows say (``margin``); None where no row does."""
    weights_B: torch.Tensor | None = None
    """How often each pair counts (bootstrap samples); the core multiplies the loss by it. None counts each once."""
    chosen_lengths_B: torch.Tensor | None = None
    """Completion tokens of the chosen side; None for reward models."""
    rejected_lengths_B: torch.Tensor | None = None
    """Completion tokens of the rejected side; None for reward models."""
    beta_scale_B: torch.Tensor | None = None
    """What a beta schedule multiplies a preference loss's beta by; None is 1."""
    nll_B: torch.Tensor | None = None
    """Negative log-likelihood of the chosen text, with gradient, scaled so that its mean over the pairs of the whole
    batch is the mean over their tokens; None where no supervised term was asked for."""
    right_B: torch.Tensor | None = None
    """1 where the pair's own chosen side is ahead, 0.5 at a tie; given where ``rejected_B`` or the references are
    another pair's (AOT), None where the pairs are compared as they are. No gradient."""


@dataclass(frozen=True, slots=True)
class UnpairedBatch:
    """What an unpaired loss (KTO) sees (``consumes = "unpaired"``); every tensor is ``[B]``."""

    logprobs_B: torch.Tensor
    """Summed logprob of each response under the policy being trained, with gradient."""
    desirable_B: torch.Tensor
    """Bool; True where the response is one to make more likely."""
    ref_logprobs_B: torch.Tensor | None = None
    """Under the reference policy; None without one. No gradient."""
    kl_B: torch.Tensor | None = None
    """KL(policy || reference) in nats per response, one estimate for the batch, at least 0; None without one."""
    beta_scale_B: torch.Tensor | None = None
    """What a beta schedule multiplies the loss's beta by; None is 1."""


@dataclass(frozen=True, slots=True)
class LossOutput:
    """An unreduced loss."""

    loss: torch.Tensor
    """``loss_BT`` (token losses) or ``loss_B`` (pair losses). Never masked, averaged or divided."""
    metrics: Mapping[str, tuple[torch.Tensor | float, torch.Tensor | float]] = field(default_factory=dict)
    """Name -> (sum, weight); the core adds both over micro-batches and ranks, then divides."""
