"""An advantage per turn of an episode: what a turn and later ones were paid, against the group's other episodes.

Suffixes: ``_K`` the policy's turns of one episode, ``_T`` its tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from rlhf_core.config import BuildContext
from rlhf_core.losses import Advantages
from rlhf_core.rewards import Score
from rlhf_core.rollouts import Rollout
from rlhf_plugin_grpo.advantage import Array, rows_by_group, spread

if TYPE_CHECKING:
    from rlhf_plugin_grpo.advantage_config import TurnConfig

POLICY = "assistant"
"""The role of the policy's turns."""


class TurnAdvantage:
    r""":math:`A_{ik} = G_{ik} - b_{ik}` for turn k of episode i, the same for all tokens of the turn. :math:`G_{ik} =
    \sum_{l \ge k} \gamma^{l - k} r_{il}` is what the turn and later ones were paid: the scores of the turns, times
    ``turn_weight``, and in the last the episode's score, times ``outcome_weight``. The baseline :math:`b_{ik}` is the
    mean of :math:`G_{jk}` over the group's *other* episodes that have a turn k; if none has, the mean of what their
    last turns brought. Without the episode itself and without a standard deviation, late turns that few episodes reach
    keep their size."""

    def __init__(self, config: TurnConfig, ctx: BuildContext) -> None:
        self.config = config
        self.charged = float(getattr(getattr(ctx.config, "reward", None), "turn_weight", 0.0))

    def estimate(self, rollouts: Sequence[Rollout], scores: Sequence[Score], group_ids: Sequence[int]) -> Advantages:
        """Return ``[T]`` per episode, a float where a rollout has no turns, None where a score is missing."""
        advantages: dict[int, Array] = {}
        alone = 0
        for rows in rows_by_group(scores, group_ids):
            returns = {i: self.returns(rollouts[i], scores[i]) for i in rows}
            for i in rows:
                others = [returns[j] for j in rows if j != i]
                advantages[i] = self._centred(returns[i], others)
                alone += sum(all(len(other) <= k for other in others) for k in range(len(returns[i])))
        every = np.concatenate([*advantages.values(), np.zeros(0)])
        scale = spread(every, self.config.relative_floor) if self.config.scale == "batch" else 0.0
        factor = 1 / (scale + self.config.epsilon) if scale else 1.0
        by_token = {i: by_turn(factor * row, rollouts[i]) for i, row in advantages.items()}
        return Advantages([by_token.get(i) for i in range(len(rollouts))], metrics(advantages, alone))

    def returns(self, rollout: Rollout, score: Score) -> Array:
        """``G`` of each of the policy's turns, ``[K]``."""
        rewards_K = self.config.turn_weight * turn_scores(rollout)
        rewards_K[-1] += self.config.outcome_weight * (
            float(score.value or 0.0) - self.charged * score.parts.get("turns", 0.0)
        )
        later = 0.0
        for k in range(len(rewards_K) - 1, -1, -1):
            later = rewards_K[k] = rewards_K[k] + self.config.discount * later
        return rewards_K

    def _centred(self, returns_K: Array, others: Sequence[Array]) -> Array:
        """An episode's returns less their baselines; zeros without another episode, or where nothing differs."""
        if not others:
            return np.zeros_like(returns_K)
        last = float(np.mean([other[-1] for other in others]))
        baseline_K = np.full_like(returns_K, last)
        for k in range(len(returns_K)):
            if reached := [other[k] for other in others if len(other) > k]:
                baseline_K[k] = np.mean(reached)
        centred_K = returns_K - baseline_K
        largest = max(float(np.abs(row).max()) for row in (returns_K, *others))
        centred_K[np.abs(centred_K) <= self.config.relative_floor * largest] = 0.0
        return centred_K


def starts(rollout: Rollout) -> list[int]:
    """First token of each of the policy's turns; the whole completion is one where the rollout has no turns."""
    return [turn.span[0] for turn in rollout.turns if turn.role == POLICY] or [0]


def turn_scores(rollout: Rollout) -> Array:
    """What each of the policy's turns was paid, ``[K]``: its own score, and those of all that answered it."""
    scores_K, turn_index = np.zeros(len(starts(rollout))), -1
    for turn in rollout.turns:
        turn_index += turn.role == POLICY
        scores_K[max(0, turn_index)] += turn.score or 0.0
    return scores_K


def by_turn(values_K: Array, rollout: Rollout) -> float | npt.NDArray[np.float32]:
    """Each turn's number at its tokens, ``[T]``, and at what answers it (masked); one number without turns."""
    if not rollout.turns:
        return float(values_K[0])
    first = [0, *starts(rollout)[1:], len(rollout.completion_ids)]
    return np.repeat(values_K, np.diff(first)).astype(np.float32)


def metrics(advantages: Mapping[int, Array], alone: int) -> dict[str, float]:
    """Turns per episode, and the share of turns that no other episode of the group has."""
    turns = sum(map(len, advantages.values()))
    return {"advantage/turns": turns / len(advantages), "advantage/turns_alone": alone / turns} if turns else {}
