"""Generalised advantages from a critic's values, with a KL penalty in every token's reward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rlhf_core.config import BuildContext
from rlhf_core.losses import Advantages, TokenValues, kl_value
from rlhf_core.rewards import Score
from rlhf_core.rl import KLSettings
from rlhf_core.rollouts import FinishReason, Rollout
from rlhf_plugin_grpo.advantage import rounding
from rlhf_plugin_ppo.config import GaeConfig, PpoKL
from rlhf_plugin_ppo.maths import Doubles, KLController, explained_variance, gae, whitened

Indices = npt.NDArray[np.intp]
POLICY = "assistant"
"""The role of the policy's turns."""


class Gae:
    """Token advantages and returns of one rollout batch; holds the critic and the KL coefficient. A token's reward is
    ``-beta KL_t``, with the score on the last one and an episode's ``reward.turn_weight`` on its turn's last token.
    Tokens of tools are no time steps; missing scores, and with ``trainer.mask_truncated`` truncated completions, take
    no part. Outside a run all values are 0 and no KL is charged."""

    def __init__(self, config: GaeConfig, ctx: BuildContext) -> None:
        self.config = config
        trainer = getattr(ctx.config, "trainer", None)
        self.mask_truncated = bool(getattr(trainer, "mask_truncated", False))
        self.turn_weight = float(getattr(getattr(ctx.config, "reward", None), "turn_weight", 0.0))
        kl = getattr(trainer, "kl", KLSettings(where="reward"))
        self.estimator = kl.estimator
        self.control = controller(kl)
        self.critic: Any = None
        if getattr(ctx.policy, "model", None) is not None:
            from rlhf_plugin_ppo.critic import make_critic

            self.critic = make_critic(config.critic, ctx)
        self.on_policy_trunk = config.critic.kind == "shared"
        self.learning_rate, self.warmup_steps = config.critic.learning_rate, config.warmup_steps

    def with_value_loss(self, loss: Any) -> Any:
        from rlhf_plugin_ppo.loss import WithValues

        return WithValues(loss, self.config.value_coefficient, self.config.cliprange_value)

    def estimate(
        self,
        rollouts: Sequence[Rollout],
        scores: Sequence[Score],
        group_ids: Sequence[int],
        tokens: Sequence[TokenValues] | None = None,
    ) -> Advantages:
        """Return ``[T]`` advantages and returns per rollout, None where its score is missing."""
        if tokens is None or len(tokens) == 0:
            token_values = [TokenValues(np.zeros(len(r.completion_ids) + 1, np.float32)) for r in rollouts]
        else:
            token_values = list(tokens)
        masks = (np.ones(len(r.completion_ids)) if r.mask_T is None else r.mask_T for r in rollouts)
        chosen = [np.flatnonzero(mask_T) for mask_T in masks]
        kls = [self._kl(r, v)[c] for r, v, c in zip(rollouts, token_values, chosen, strict=True)]

        advantages: dict[int, Doubles] = {}
        values: dict[int, Doubles] = {}
        returns: dict[int, Doubles] = {}
        for i, score in enumerate(scores):
            if score.ok:
                advantages[i] = self._advantages(rollouts[i], score, token_values[i], chosen[i], kls[i])
                values[i] = np.asarray(token_values[i].values_T1, np.float64)[chosen[i]]
                returns[i] = advantages[i] + values[i]

        trained = [i for i in advantages if not (self.mask_truncated and truncated(rollouts[i]))]
        metrics = self._metrics([values[i] for i in trained], [returns[i] for i in trained])
        if tokens is not None and rollouts:
            metrics["kl_coefficient"] = self.control.coefficient
            self.control.observe(float(np.mean([kl.sum() for kl in kls])), len(rollouts))
        if self.config.whiten:
            # what a KL of 0 looks like: the difference of sums of log-probabilities, charged at the coefficient
            sums = [float(np.abs(rollouts[i].logprobs_T[chosen[i]]).sum()) for i in trained]
            least = self.control.coefficient * rounding(1 + max(sums, default=0.0))
            advantages |= zip(trained, whitened([advantages[i] for i in trained], least))

        sizes = [len(r.completion_ids) for r in rollouts]
        return Advantages(
            [spread(advantages.get(i), chosen[i], sizes[i]) for i in range(len(rollouts))],
            metrics,
            [spread(returns.get(i), chosen[i], sizes[i]) for i in range(len(rollouts))],
        )

    def _kl(self, rollout: Rollout, token_values: TokenValues) -> Doubles:
        """KL estimate ``[T]`` per completion token; zeros without a reference policy."""
        if token_values.ref_T is None:
            return np.zeros(len(rollout.completion_ids))
        return np.asarray(kl_value(rollout.logprobs_T, token_values.ref_T, self.estimator), np.float64)

    def _advantages(
        self, rollout: Rollout, score: Score, token_values: TokenValues, chosen: Indices, kl: Doubles
    ) -> Doubles:
        """Of one completion, at the tokens that the policy chose."""
        if not len(chosen):
            return np.zeros(0)
        bootstraps = self.config.truncated == "bootstrap" and truncated(rollout)
        rewards = -self.control.coefficient * kl
        paid = self.turn_weight * turn_rewards(rollout, chosen) if "turns" in score.parts else np.zeros(len(chosen))
        rewards += paid
        rewards[-1] += 0.0 if bootstraps else float(score.value or 0.0) - paid.sum()
        last_value = float(token_values.values_T1[-1]) if bootstraps else 0.0
        values = np.append(np.asarray(token_values.values_T1, np.float64)[chosen], last_value)
        return gae(rewards, values, self.config.gamma, self.config.gae_lambda)

    def _metrics(self, values: Sequence[Doubles], returns: Sequence[Doubles]) -> dict[str, float]:
        """Means over all trained tokens, and the variance of the returns that the values explain."""
        if not sum(len(row) for row in returns):
            return {}
        all_values, all_returns = np.concatenate(values), np.concatenate(returns)
        metrics = {"value/mean": float(all_values.mean()), "return/mean": float(all_returns.mean())}
        explained = explained_variance(all_values, all_returns)
        return metrics if explained is None else {**metrics, "explained_variance": explained}

    def state_dict(self) -> dict[str, Any]:
        """The KL coefficient; the core keeps the critic."""
        return {"kl_coefficient": self.control.coefficient}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.control.coefficient = float(state["kl_coefficient"])


def controller(kl: KLSettings) -> KLController:
    """The coefficient of the KL in the reward: 0 if the KL is in the loss; constant unless PPO's settings adapt it."""
    coefficient = kl.coefficient if kl.where == "reward" else 0.0
    if isinstance(kl, PpoKL) and kl.controller == "adaptive":
        return KLController(coefficient, kl.target, kl.horizon)
    return KLController(coefficient)


def truncated(rollout: Rollout) -> bool:
    return rollout.finish_reason is FinishReason.LENGTH


def turn_rewards(rollout: Rollout, chosen: Indices) -> Doubles:
    """What an episode's turns were paid, at the last chosen token of the policy's turn that earned it."""
    rewards, ends = np.zeros(len(chosen)), [turn.span[1] for turn in rollout.turns if turn.role == POLICY]
    at = -1
    for turn in rollout.turns:
        at += turn.role == POLICY
        if turn.score and ends:
            rewards[max(0, np.searchsorted(chosen, ends[max(0, at)]) - 1)] += turn.score
    return rewards


def spread(row: Doubles | None, chosen: Indices, size: int) -> Any:
    """Put numbers of the chosen tokens back in their places, 0 elsewhere; None stays None."""
    if row is None:
        return None
    full = np.zeros(size, np.float32)
    full[chosen] = row
    return full
