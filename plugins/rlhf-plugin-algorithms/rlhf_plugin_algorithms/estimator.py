"""Asks the algorithms of a run, on rank 0, and shares their signals out. Suffix: ``_T`` tokens of one completion."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from rlhf_core.config import BuildContext
from rlhf_core.data import PromptGroup
from rlhf_core.losses import Advantages, LossOutput, TokenValues
from rlhf_core.plugins.component_calls import component_errors, label_for
from rlhf_core.rewards import Score
from rlhf_core.rollouts import FinishReason, Rollout
from rlhf_plugin_algorithms.check import Terms, check_signals
from rlhf_plugin_algorithms.config import SignalsConfig, algorithm_of
from rlhf_plugin_algorithms.loss import SignalLoss
from rlhf_plugin_algorithms.module import SignalModule
from rlhf_plugin_algorithms.shares import TEACHER, Share, Totals, learned
from rlhf_plugin_algorithms.signals import Example, Scored
from rlhf_plugin_algorithms.teachers import Teacher


class SignalEstimator:
    """What the core's step asks for advantages, with or without a critic (``CriticAdvantage``). The policy gradient's
    and the critic's targets go the core's way; all terms are kept for :meth:`shares`."""

    def __init__(self, config: SignalsConfig, ctx: BuildContext) -> None:
        self.configs = config.algorithms
        build = (lambda one: one.build(ctx)) if ctx.session is None else (lambda one: ctx.build("algorithm", one))
        self.algorithms: list[Any] = [build(one) for one in self.configs]
        self.labels = [label_for("algorithm", one, ctx.registry) for one in self.configs]
        sources = [] if ctx.datasets is None else list(ctx.datasets.weights)
        self.algorithm_of = algorithm_of(self.configs, sources) if sources else {}
        self.mask_truncated = bool(getattr(ctx.config.trainer, "mask_truncated", False))
        self.groups: Sequence[PromptGroup] = ()
        """Of the batch; given before :meth:`estimate`."""
        self.rows: list[Terms] = []
        self.positions: list[int] = []
        self.examples: list[Example] = []
        in_run = getattr(ctx.policy, "model", None) is not None
        taught = {n: one for n, one in enumerate(self.configs) if in_run and getattr(one, "teacher", None) is not None}
        self.teachers = {n: Teacher(one, ctx) for n, one in taught.items()}
        found = next((one.critic for one in self.algorithms if getattr(one, "critic", None) is not None), None)
        self._with_value_loss = None if found is None else found.with_value_loss
        self.critic, self.on_policy_trunk = getattr(found, "critic", None), getattr(found, "on_policy_trunk", False)
        self.learning_rate, self.warmup_steps = getattr(found, "learning_rate", None), getattr(found, "warmup_steps", 0)

    def make_module(self, model: Any, temperature: float, options: Any) -> SignalModule:
        """The policy's module, in the core's place of it."""
        return SignalModule(model, temperature, options, self.teachers)

    def with_value_loss(self, loss: Any) -> SignalLoss:
        """The sum of all terms, in the place where the core adds a critic's to the run's loss."""
        term = replace(loss.terms[-1], kl_coefficient=1.0, entropy_coefficient=0.0)
        return SignalLoss(loss, lambda batch: term(LossOutput(0.0 * batch.logprobs_BT), batch), self._with_value_loss)

    def estimate(
        self,
        rollouts: Sequence[Rollout],
        scores: Sequence[Score],
        group_ids: Sequence[int],
        values: Sequence[TokenValues] | None = None,
    ) -> Advantages:
        """Advantages of the policy gradient (of others the weights of another term), None where nothing counts."""
        prompts = [self.groups[group].prompt for group in group_ids]
        self.positions = [self.algorithm_of.get(prompt.source, 0) for prompt in prompts]
        self.rows, self.examples = [{}] * len(rollouts), []
        metrics: dict[str, float] = {}
        names = [config.name for config in self.configs]
        for position, (config, label) in enumerate(zip(self.configs, self.labels, strict=True)):
            places = [n for n, one in enumerate(self.positions) if one == position]
            given: Any = (rollouts, scores, group_ids, prompts, values)
            rows: list[Any] = [None if of_all is None else [of_all[n] for n in places] for of_all in given]
            scored = Scored(*rows)
            with component_errors(label, "signals()"):
                answer = self.algorithms[position].signals(scored)
            for n, terms in zip(places, check_signals(answer, scored, config.components, label), strict=True):
                self.rows[n] = self._terms_of(terms, rollouts[n], config)
            self.examples += answer.examples
            own = config.name if names.count(config.name) == 1 else f"{config.name}-{position + 1}"
            prefix = f"{own}/" if len(names) > 1 else ""
            metrics |= {f"{prefix}{name}": float(value) for name, value in answer.metrics.items()}
            if answer.nothing:
                metrics[f"{prefix}without_signal"] = 1.0
        returns = None if values is None else [_returns(terms, r) for terms, r in zip(self.rows, rollouts)]
        return Advantages([_weights(terms) for terms in self.rows], metrics, returns)

    def _terms_of(self, terms: Terms, rollout: Rollout, config: Any) -> Terms:
        """What a completion learns: nothing of one that ran into ``max_tokens``, where these are left out."""
        if self.mask_truncated and rollout.finish_reason is FinishReason.LENGTH:
            return {}
        taught = getattr(config, "teacher", None) is not None
        return {TEACHER if taught and name == "kl" else name: term for name, term in terms.items()}

    def shares(self, sizes: Sequence[int]) -> list[Share]:
        """One for each rank, which has so many of the rollouts; nothing on a rank that asked nobody."""
        ends, totals = np.cumsum([0, *sizes]).tolist(), self._totals()
        return [
            Share(self.rows[a:b], self.positions[a:b], self.examples[rank :: len(sizes)], totals)
            for rank, (a, b) in enumerate(pairwise(ends))
        ]

    def _totals(self) -> Totals:
        tokens: Counter[str] = Counter()
        sequences: Counter[str] = Counter()
        masks = [{name: term.mask_T for name, term in terms.items()} for terms in self.rows]
        masks += [{"cross_entropy": learned(example)} for example in self.examples]
        for row in masks:
            tokens.update({name: int(mask_T.sum()) for name, mask_T in row.items()})
            sequences.update(row.keys())
        together = [np.logical_or.reduce(list(row.values())).sum() for row in masks if row]
        return Totals(dict(tokens), dict(sequences), int(sum(together)), len(together))

    def state_dict(self) -> dict[str, Any]:
        """The algorithms' states, by their positions."""
        return {str(n): one.state_dict() for n, one in enumerate(self.algorithms) if hasattr(one, "state_dict")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore them."""
        for n, one in state.items():
            self.algorithms[int(n)].load_state_dict(one)


def _weights(terms: Terms) -> Any:
    """What the core takes for the advantage; None where nothing counts."""
    if not terms:
        return None
    return terms["policy_gradient" if "policy_gradient" in terms else next(iter(terms))].weights_T


def _returns(terms: Terms, rollout: Rollout) -> Any:
    targets_T = terms["value"].targets_T if "value" in terms else None
    return np.zeros(len(rollout.completion_ids), np.float32) if targets_T is None else targets_T
