"""What an algorithm is given and what it returns: plain Python and numpy. Suffix: ``_T`` tokens of one completion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from rlhf_core.data import Prompt
from rlhf_core.losses import TokenValues
from rlhf_core.rewards import Score
from rlhf_core.rollouts import Rollout

Floats = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Scored:
    """The scored rollouts of one step that an algorithm learns from, of all ranks, group by group; read-only."""

    rollouts: Sequence[Rollout]
    scores: Sequence[Score]
    group_ids: Sequence[int]
    """Which prompt each rollout belongs to."""
    prompts: Sequence[Prompt]
    """Of each rollout."""
    values: Sequence[TokenValues] | None = None
    """The critic's, and reference logprobs; None without a critic."""


@dataclass(frozen=True, slots=True)
class Signal:
    """One component's weight at each token of each rollout.

    Example:
        Signal("policy_gradient", [0.5, -0.5, None])
    """

    component: str
    """Term of the loss. ``policy_gradient``: the weights are advantages, which the run's loss consumes.
    ``cross_entropy``: ``-weight log p`` of any tokens of an episode, at the sampling temperature. ``kl``: the weight
    times the KL from the policy to the reference policy or, where the Config has a ``teacher``, the divergence from
    it. ``value``: the weight times the critic's loss."""
    weights: Sequence[float | Floats | None]
    """Of each rollout a number for all its tokens that count, an array ``[T]``, or None: none of its tokens counts."""
    masks: Sequence[Bools | None] | None = None
    """``[T]``, True where a token counts, also in the component's mean. None: the tokens that the policy chose; of a
    ``cross_entropy`` those whose weight is not 0."""
    targets: Sequence[Floats | None] | None = None
    """Of ``value``: the returns ``[T]``; None of the other components."""


@dataclass(frozen=True, slots=True)
class Example:
    """A demonstration that nobody sampled, learned with ``cross_entropy`` beside the rollouts."""

    name: str
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    weight: float = 1.0
    learned_T: Bools | None = None
    """Which completion tokens count; None: all."""


@dataclass(frozen=True, slots=True)
class Signals:
    """What an algorithm returns for one step. Each component is averaged over its own tokens, as ``trainer.reduction``
    says; the loss is their sum."""

    signals: Sequence[Signal]
    """At most one of each component."""
    examples: Sequence[Example] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    nothing: str = ""
    """Why every weight is 0, where it is; all zeros without a reason are an error."""


class Algorithm(Protocol):
    """Turns scored rollouts into signals. Optional: ``state_dict`` and ``load_state_dict``, and ``critic``, an
    advantage estimator with a critic (``CriticAdvantage``), which ``value`` needs."""

    def signals(self, scored: Scored) -> Signals:
        """Called on rank 0 with the rollouts of all ranks; it must not communicate."""
        ...


def chosen(rollout: Rollout) -> Bools:
    """``[T]``, True where the policy chose the token."""
    return np.ones(len(rollout.completion_ids), bool) if rollout.mask_T is None else np.asarray(rollout.mask_T)
