"""Step rewards as token advantages, normalised over a prompt's group.

Suffixes: ``_T`` completion tokens of one rollout, ``_S`` its steps.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rlhf_core.config import BuildContext
from rlhf_core.losses import Advantages
from rlhf_core.rewards import Score
from rlhf_core.rollouts import Rollout
from rlhf_plugin_prm.reward_config import StepAdvantageConfig

Floats = npt.NDArray[np.float64]


class StepAdvantage:
    """``A_t = sum of (r_s - mean) / std over the steps s that end at token t or later`` (Shao et al. 2024, 4.1.3).

    Mean and std are those of all step rewards of all completions of a prompt. Tokens after the last step (the end
    token) belong to it. With ``credit: own`` a token gets its own step's reward alone, with ``min`` the worst of its
    own and later ones, so that a solution with more good steps is not worth more than a short one.
    """

    def __init__(self, config: StepAdvantageConfig, ctx: BuildContext) -> None:
        self.config, self.tokenizer = config, getattr(ctx.policy, "tokenizer", None)

    def estimate(self, rollouts: Sequence[Rollout], scores: Sequence[Score], group_ids: Sequence[int]) -> Advantages:
        steps = {i: step_rewards(s) for i, s in enumerate(scores) if s.ok}
        values: list[npt.NDArray[np.float32] | None] = [None] * len(rollouts)
        constant = 0
        groups = {g: [i for i in steps if group_ids[i] == g] for g in dict.fromkeys(group_ids)}
        for rows in groups.values():
            if not rows:
                continue
            pooled = np.concatenate([steps[i][0] for i in rows])
            std = float(pooled.std(ddof=1)) if len(pooled) > 1 else 0.0
            flat = std <= self.config.relative_floor * float(np.abs(pooled).max())
            constant += flat
            for i in rows:
                rewards_S, ends_S = steps[i]
                scaled_S = 0 * rewards_S if flat else (rewards_S - pooled.mean()) / (std + self.config.epsilon)
                values[i] = self._spread(rollouts[i], credited(scaled_S, self.config.credit), ends_S)
        counts = [len(r) for r, _ in steps.values()]
        return Advantages(
            values,
            {"advantage/steps": float(np.mean(counts)), "advantage/constant_groups": float(constant)} if counts else {},
        )

    def _spread(self, rollout: Rollout, scaled_S: Floats, ends_S: Sequence[int]) -> npt.NDArray[np.float32]:
        sizes = np.diff([0, *token_ends(rollout, ends_S[:-1], self.tokenizer), len(rollout.completion_ids)])
        return np.repeat(scaled_S, sizes).astype(np.float32)


def step_rewards(score: Score) -> tuple[Floats, list[int]]:
    """(reward of each step, character where each ends); a score without steps is one step that ends with the text."""
    names = range(1, 1 + sum(name.startswith("step_") for name in score.parts))
    if not names or any(f"{part}_{n}" not in score.parts for n in names for part in ("step", "end")):
        return np.array([score.value], np.float64), [0]
    return (np.array([score.parts[f"step_{n}"] for n in names]), [int(score.parts[f"end_{n}"]) for n in names])


def credited(scaled_S: Floats, credit: str) -> Floats:
    """What the tokens of each step answer for: see ``StepAdvantageConfig.credit``."""
    if credit == "sum":
        return np.cumsum(scaled_S[::-1])[::-1]
    return np.minimum.accumulate(scaled_S[::-1])[::-1] if credit == "min" else scaled_S


def token_ends(rollout: Rollout, ends: Sequence[int], tokenizer: Any) -> list[int]:
    """Completion tokens up to the one that brings each character ``end - 1``, by decoding the sampled ids."""
    ids = rollout.completion_ids
    lengths: dict[int, int] = {}

    def characters(count: int) -> int:
        if count not in lengths:
            lengths[count] = len(tokenizer.decode(list(ids[:count]), skip_special_tokens=True))
        return lengths[count]

    token_counts: list[int] = []
    for end in ends:
        token_counts.append(
            bisect_left(range(len(ids)), end, lo=token_counts[-1] if token_counts else 0, key=characters)
        )
    return token_counts
