"""Samples on held-out prompts of a policy that learns from data. Suffix: ``_T`` completion tokens of one rollout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from rlhf_core.data.datasets import Datasets, admit
from rlhf_core.data.order import interleave
from rlhf_core.distributed.group import LocalStrategy, engine_on_every_rank
from rlhf_core.models.load import LoadedModel
from rlhf_core.models.prompt_format import Formatter
from rlhf_core.models.reference import Reference
from rlhf_core.plugins.context import BuildContext
from rlhf_core.plugins.entry_points import scheduler
from rlhf_core.training.functional import kl_value
from rlhf_core.training.generation import RolloutGenerator, rollout_metrics
from rlhf_core.training.micro_batches import NoGradForward
from rlhf_core.training.offline.config import PolicyTrainerConfig
from rlhf_core.training.policy_evaluator import (
    Evaluation,
    before_and_after,
    evaluate_on_rank_zero,
    gold_metrics,
    gold_rows,
    sample_rows,
    sample_share,
)
from rlhf_core.training.policy_module import LOGPROBS, PolicyModule, ReferencePolicy
from rlhf_core.training.rewards import RewardManager, score_metrics
from rlhf_core.training.rollout_batch import TrainingSample
from rlhf_core.training.weight_sync import WeightSync, trained_names, weights_to_sample
from rlhf_core.types.rollouts import PromptGroup, Rollout, Score


class PolicyTask(Protocol):
    """The part of an offline task that can be sampled from."""

    policy: LoadedModel
    formatter: Formatter
    datasets: Datasets


class SampledRow(NamedTuple):
    """One held-out completion."""

    rollout: Rollout
    score: Score | None
    gold: Mapping[str, Any] | None
    reference_T: npt.NDArray[np.float32] | None
    """Logprobs under the reference policy; None where nothing asks for them."""


References = Sequence[npt.NDArray[np.float32] | None]


class PolicySamples:
    """Samples one completion per held-out prompt, the same seeds every time."""

    def __init__(self, config: PolicyTrainerConfig, ctx: BuildContext, task: PolicyTask) -> None:
        self.config, self.strategy, self.session = config, ctx.strategy, ctx.session
        self.policy, self.datasets = task.policy, task.datasets
        self.sampling = config.sampling.params()
        self.groups = self._groups(task)
        self.generator, self.rewards = self._build(ctx.with_(policy=task.policy, datasets=task.datasets))
        self.reference = Reference.of(task.policy.model) if config.track_kl else None
        self.trained = trained_names(task.policy.model)
        self.frozen: ReferencePolicy | None = None
        """The reference where it is a copy; None where it is the policy's adapter switched off, or nothing asks."""
        self.before: Evaluation | None = None
        self.after: Evaluation | None = None

    def start(self, module: torch.nn.Module) -> None:
        """Take the policy's prepared module, and let the strategy shard the reference too; all ranks call it."""
        self.module = module
        if self.reference is not None and not self.reference.adapter:
            settings = getattr(self.config, "reference", None)
            placed = settings and scheduler("reference", "trainer.reference")()(settings)
            make = placed or ReferencePolicy
            self.frozen = make(self.reference, self.policy.model, module, self.strategy, sync_every=0)

    def _groups(self, task: PolicyTask) -> list[PromptGroup]:
        prompts, dropped = admit(
            task.datasets.prompts("heldout"),
            task.formatter.encode_prompt,
            task.datasets.settings,
            context=task.policy.context,
            max_tokens=self.sampling.max_tokens,
        )
        task.datasets.counts.update(dropped)
        order = interleave([p.source for p in prompts], task.datasets.weights)[: self.config.sample_prompts]
        return [PromptGroup(prompts[i], task.formatter.encode_prompt(prompts[i]), 1) for i in order]

    def _build(self, ctx: BuildContext) -> tuple[RolloutGenerator, RewardManager | None]:
        components = ctx.session.components
        agent, engine = components.build_slot("agent", ctx), components.build_slot("rollout", ctx)
        generator = RolloutGenerator(agent, engine, ctx.seed)
        if ctx.config.reward is None:
            return generator, None
        reward = components.build_slot("reward", ctx)
        return generator, RewardManager(reward, {}, self.config.max_missing_fraction)

    def run(self, step: int, version: int) -> dict[str, float]:
        """Sample, measure and remember; metrics begin with ``eval/``. All ranks call it."""
        if not self.groups:
            return {}
        whole_weights = partial(self.strategy.gathered, self.module)
        engine = self.generator.engine.engine
        with engine_on_every_rank(self.strategy):
            WeightSync(self.policy.model, whole_weights, None, engine, self.trained, self.strategy).sync(version)
        of_policy = self.reference is not None and self.frozen is None
        with (whole_weights if of_policy else weights_to_sample(engine, whole_weights))():
            work = "sampling held-out prompts"
            prompts, rollouts = sample_share(self.session, self.generator, self.groups, self.sampling, version, work)
            scores = [None] * len(prompts) if self.rewards is None else self.rewards.score(prompts, rollouts)
            references = self._references(rollouts) if of_policy else []
        if not of_policy:
            references = self._references(rollouts)
        golds = gold_rows(self.datasets, prompts, rollouts)
        rows = [SampledRow(*row) for row in zip(rollouts, scores, golds, references, strict=True)]
        evaluation = evaluate_on_rank_zero(self.strategy, rows, evaluation_of)
        self.session.counts.update({f"eval_score_{status}": n for status, n in evaluation.missing.items()})
        self.before, self.after = (evaluation if step == 0 else self.before), evaluation
        self.session.samples(step, sample_rows(self.groups, evaluation))
        return dict(evaluation.metrics)

    def _references(self, rollouts: Sequence[Rollout]) -> References:
        """Logprobs under the frozen copy, or the policy without its adapter, whose weights are whole then; None each
        where nothing asks. All ranks call it, maybe without rollouts."""
        if self.reference is None or self.sampling.temperature == 0:
            return [None] * len(rollouts)
        samples, size = [TrainingSample.from_rollout(r) for r in rollouts], self.config.micro_batch_size
        module = PolicyModule(self.policy.model, self.sampling.temperature)
        if self.frozen is not None:
            return self.frozen.logprobs(samples, module, size)
        measure = partial(PolicyModule.measure, want=LOGPROBS)
        rows = NoGradForward(LocalStrategy(), module).rows(samples, size, measure, self.reference.active())
        return [row.logprobs_T for row in rows]

    def summary(self) -> dict[str, Any]:
        """Win rate by the gold score over the start, and examples, as of an on-policy run."""
        return before_and_after(self.groups, self.before, self.after)

    def state_dict(self) -> dict[str, Any]:
        """The evaluation before training."""
        return {"before": None if self.before is None else self.before.state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore it."""
        self.before = Evaluation.from_state(state["before"])


def evaluation_of(rows: Sequence[SampledRow]) -> Evaluation:
    """What the completions of all held-out prompts, in their order, come to."""
    rollouts = [row.rollout for row in rows]
    metrics = {**rollout_metrics(rollouts), **gold_metrics(rows, "gold"), **kl_metrics(rows)}
    metrics |= score_metrics([row.score for row in rows if row.score is not None])
    golds = [float(row.gold["value"]) for row in rows if row.gold is not None]
    return Evaluation(
        {f"eval/{k}": v for k, v in metrics.items()},
        [r.text for r in rollouts],
        golds if len(golds) == len(rows) else None,
        media=[r.media for r in rollouts],
    )


def kl_metrics(rows: Sequence[SampledRow]) -> dict[str, float]:
    """KL(policy || reference), nats: ``kl`` per token by k3, ``kl_completion`` summed by k1; {} without references."""
    pairs = [(row.rollout.logprobs_T, row.reference_T) for row in rows if row.reference_T is not None]
    if not rows or len(pairs) < len(rows):
        return {}
    k3 = np.concatenate([kl_value(logprobs_T, reference_T) for logprobs_T, reference_T in pairs])
    k1 = [float((logprobs_T - reference_T).sum()) for logprobs_T, reference_T in pairs]
    return {"kl": float(k3.mean()), "kl_completion": float(np.mean(k1))}
