"""Generalised advantages from a critic's values, with a KL penalty in every token's reward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlhf_core.api import Advantages, BuildContext, FinishReason, KLSettings, Rollout, Score, TokenValues
from rlhf_core.functional import kl_value
from rlhf_plugin_ppo.config import GaeConfig, PpoKL
from rlhf_plugin_ppo.maths import Doubles, KLController, explained_variance, gae, whitened


class Gae:
    """Token advantages and returns of one rollout batch; holds the critic and the KL coefficient.

    Reward of a token: ``-beta KL_t``, and the score on the last one. Tokens that the policy did not choose (a tool's)
    are no time steps. Missing scores take no part; neither do, with ``trainer.mask_truncated``, truncated completions.
    Outside a run (no policy, no trainer) all values are 0 and no KL is charged.
    """

    def __init__(self, config: GaeConfig, ctx: BuildContext) -> None:
        self.config = config
        trainer = getattr(ctx.config, "trainer", None)
        self.mask_truncated = bool(getattr(trainer, "mask_truncated", False))
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
        """Add the critic's loss to the policy's."""
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
        told = tokens or [TokenValues(np.zeros(len(r.completion_ids) + 1, np.float32)) for r in rollouts]
        chosen = [np.flatnonzero(np.ones(len(r.completion_ids)) if r.mask_T is None else r.mask_T) for r in rollouts]
        kls = [self._kl(r, t)[c] for r, t, c in zip(rollouts, told, chosen, strict=True)]
        raw = {i: self._advantages(rollouts[i], s, told[i], chosen[i], kls[i]) for i, s in enumerate(scores) if s.ok}
        values = {i: np.asarray(told[i].values_T1, np.float64)[chosen[i]] for i in raw}
        returns = {i: raw[i] + values[i] for i in raw}
        seen = [i for i in raw if not (self.mask_truncated and truncated(rollouts[i]))]
        final = raw | dict(zip(seen, whitened([raw[i] for i in seen]))) if self.config.whiten else raw
        metrics = self._metrics([values[i] for i in seen], [returns[i] for i in seen])
        if tokens is not None and rollouts:
            metrics["kl_coefficient"] = self.control.coefficient
            self.control.observe(float(np.mean([k.sum() for k in kls])), len(rollouts))
        sizes = [len(r.completion_ids) for r in rollouts]
        return Advantages(
            [spread(final.get(i), c, sizes[i]) for i, c in enumerate(chosen)],
            metrics,
            [spread(returns.get(i), c, sizes[i]) for i, c in enumerate(chosen)],
        )

    def _kl(self, rollout: Rollout, told: TokenValues) -> Doubles:
        if told.ref_T is None:
            return np.zeros(len(rollout.completion_ids))
        return np.asarray(kl_value(rollout.logprobs_T, told.ref_T, self.estimator), np.float64)

    def _advantages(self, rollout: Rollout, score: Score, told: TokenValues, chosen: Any, kl: Doubles) -> Doubles:
        """Of one completion, at the tokens that the policy chose."""
        if not len(chosen):
            return np.zeros(0)
        goes_on = self.config.truncated == "bootstrap" and truncated(rollout)
        rewards = -self.control.coefficient * kl
        rewards[-1] += 0.0 if goes_on else float(score.value or 0.0)
        after = float(told.values_T1[-1]) if goes_on else 0.0
        values = np.append(np.asarray(told.values_T1, np.float64)[chosen], after)
        return gae(rewards, values, self.config.gamma, self.config.gae_lambda)

    def _metrics(self, values: Sequence[Doubles], returns: Sequence[Doubles]) -> dict[str, float]:
        said, true = (np.concatenate(rows) if rows else np.zeros(0) for rows in (values, returns))
        if not true.size:
            return {}
        explained = explained_variance(said, true)
        rows = {"value/mean": float(said.mean()), "return/mean": float(true.mean())}
        return rows if explained is None else {**rows, "explained_variance": explained}

    def state_dict(self) -> dict[str, Any]:
        """The KL coefficient; the core keeps the critic."""
        return {"kl_coefficient": self.control.coefficient}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore it."""
        self.control.coefficient = float(state["kl_coefficient"])


def controller(kl: KLSettings) -> KLController:
    """What charges the KL to the reward: nothing if it is in the loss; held unless PPO's own settings steer it."""
    coefficient = kl.coefficient if kl.where == "reward" else 0.0
    if isinstance(kl, PpoKL) and kl.controller == "adaptive":
        return KLController(coefficient, kl.target, kl.horizon)
    return KLController(coefficient)


def truncated(rollout: Rollout) -> bool:
    """Whether a completion was cut at ``max_tokens``."""
    return rollout.finish_reason is FinishReason.LENGTH


def spread(row: Doubles | None, chosen: Any, size: int) -> Any:
    """Put numbers of the chosen tokens back in their places, 0 elsewhere; None stays None."""
    if row is None:
        return None
    full = np.zeros(size, np.float32)
    full[chosen] = row
    return full
