"""Builds the parts of a run that samples from its policy, each with what it needs and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from rlhf_core.distributed.group import RankZero, engine_on_every_rank, new_group, sampling_on_every_rank
from rlhf_core.models.layers.trunk_and_head import base_model
from rlhf_core.models.slices import has_meta_weights, read_weights
from rlhf_core.plugins.context import BuildContext
from rlhf_core.plugins.contracts import CheckedAdvantage
from rlhf_core.plugins.entry_points import scheduler
from rlhf_core.plugins.loss_contract import CheckedLoss, LossTerm
from rlhf_core.plugins.protocols import CriticAdvantage, Loss
from rlhf_core.rl.advantages import AdvantageStep
from rlhf_core.rl.checkpoint import OnlineCheckpoint, PolicyWeights
from rlhf_core.rl.config import OnlineTrainerConfig, RolloutTrainerConfig
from rlhf_core.rl.inputs import OnlineInputs
from rlhf_core.rl.sources import CollectorSettings, InlineSource, RolloutCollector
from rlhf_core.rl.update import PolicyTerms, UpdateStep
from rlhf_core.runs.checkpoint import Checkpoint
from rlhf_core.training.forward_check import ForwardCheck, probe_forward_options
from rlhf_core.training.generation import RolloutGenerator
from rlhf_core.training.learner import Learner
from rlhf_core.training.micro_batches import MicroBatcher
from rlhf_core.training.optimizer import prepare_to_learn
from rlhf_core.training.policy_evaluator import PolicyEvaluator
from rlhf_core.training.policy_module import PolicyMicroBatcher, PolicyModule, ReferencePolicy
from rlhf_core.training.rewards import RewardManager
from rlhf_core.training.weight_sync import (
    DriftCheck,
    SamplerPolicy,
    WeightSync,
    WholeWeights,
    drift_bound,
    keeps_own_weights,
    trained_names,
    weights_to_sample,
)
from rlhf_core.types.frozen import Lazy


@dataclass(frozen=True)
class TrainableModule:
    """What a trainer learns with: a module around the policy, and the loss on the batches that it returns."""

    module: torch.nn.Module
    """``module(samples)`` returns the batch that the loss consumes; its part ``model`` is the policy."""
    loss: Loss
    total_updates: int
    critic: CriticAdvantage | None = None
    critic_updates: int = 0
    """The first of them, in which only the critic learns."""
    micro_batcher: MicroBatcher | None = None
    """None takes ``trainer.micro_batch_size`` samples each, in order."""
    estimator: Any = None


@dataclass(frozen=True)
class RolloutParts:
    """What a trainer needs to learn from rollouts of its policy."""

    source: InlineSource
    rewards: RewardManager
    learner: Learner
    reference: ReferencePolicy | None
    evaluator: PolicyEvaluator
    checkpoint: OnlineCheckpoint
    forward_check: ForwardCheck | None
    """Of a :class:`PolicyModule`; None for another module."""
    trained: TrainableModule
    drift_bound: float
    """Nats per token between engine and policy at which a run ends."""


@dataclass(frozen=True)
class OnlineParts(RolloutParts):
    """The stages of an on-policy step, and what stands around them."""

    advantages: AdvantageStep
    update: UpdateStep
    critic_warmup_steps: int


def build_online(
    config: OnlineTrainerConfig, ctx: BuildContext, inputs: OnlineInputs, checkpoint: Checkpoint | None
) -> OnlineParts:
    """The parts of the on-policy trainer, with the checkpoint's weights."""
    parts = PartsBuilder(config, ctx, inputs).build(checkpoint, partial(policy_to_train, config, inputs))
    learner, trained, strategy = parts.learner, parts.trained, ctx.strategy
    module, micro_batcher = trained.module, trained.micro_batcher
    assert isinstance(module, PolicyModule)
    assert isinstance(micro_batcher, PolicyMicroBatcher)
    estimator, zero = CheckedAdvantage(trained.estimator), RankZero(strategy)
    drift = DriftCheck(config.drift_check, ctx.session.counts, parts.drift_bound)
    return OnlineParts(
        **vars(parts),
        advantages=AdvantageStep(estimator, parts.reference, module, micro_batcher, learner.no_grad, zero, config),
        update=UpdateStep(learner, module, micro_batcher, strategy, config, ctx.session, ctx.seed, drift),
        critic_warmup_steps=trained.critic.warmup_steps if trained.critic else 0,
    )


class PartsBuilder:
    """Builds engine, rewards, loss and optimizer of a run."""

    def __init__(self, config: RolloutTrainerConfig, ctx: BuildContext, inputs: OnlineInputs) -> None:
        self.config, self.inputs = config, inputs
        self.ctx = ctx.with_(policy=inputs.policy, datasets=inputs.datasets)
        self.session, self.strategy, self.model = ctx.session, ctx.strategy, inputs.policy.model
        self.online = config if isinstance(config, OnlineTrainerConfig) else None
        self.batches_ahead = 0 if self.online is None else self.online.batches_ahead

    def build(
        self, checkpoint: Checkpoint | None, make_trainable: Callable[[BuildContext], TrainableModule]
    ) -> RolloutParts:
        """The parts, with the checkpoint's weights."""
        config, inputs, strategy, session = self.config, self.inputs, self.strategy, self.session
        own_copy = self.batches_ahead and not keeps_own_weights(self.ctx.config.rollout)
        sampler = SamplerPolicy(self.model) if own_copy else None
        weight_names = trained_names(self.model)
        engine_policy = inputs.policy if sampler is None else replace(inputs.policy, model=sampler.model)
        engine = session.components.build_slot("rollout", self.ctx.with_(policy=engine_policy))
        generator = RolloutGenerator(session.components.build_slot("agent", self.ctx), engine, self.ctx.seed)
        rewards = self._rewards()
        trained = make_trainable(self.ctx)
        critic = None if trained.critic is None else trained.critic.critic
        weights = PolicyWeights(inputs.policy, critic, inputs.reference if config.kl.sync_every else None)
        if checkpoint is not None:
            weights.load(checkpoint)
        if sampler is not None and has_meta_weights(sampler.model):
            read_weights(sampler.model, strategy.device)
            sampler.model.to(strategy.device)  # adapters and buffers, which have values
        learner = self._learner(trained, critic)
        whole_weights = partial(strategy.gathered, learner.module)
        evaluator = self._evaluator(generator, rewards, weights_to_sample(engine, whole_weights))
        session.counts.update({} if checkpoint else inputs.datasets.counts)
        reference = None
        if inputs.reference is not None:
            placed = config.reference and scheduler("reference", "trainer.reference")()(config.reference)
            make = placed or ReferencePolicy
            reference = make(inputs.reference, self.model, learner.module, strategy, config.kl.sync_every)
        forward_check = None
        if isinstance(trained.module, PolicyModule) and self.online is not None:
            done = not self.online.self_check
            forward_check = ForwardCheck(trained.module, strategy, learner.module, session.counts, done=done)
        weight_sync = WeightSync(self.model, whole_weights, sampler, engine, weight_names, strategy)
        return RolloutParts(
            source=self._source(generator, rewards, weight_sync),
            rewards=rewards,
            learner=learner,
            reference=reference,
            evaluator=evaluator,
            checkpoint=OnlineCheckpoint(
                session.checkpoints, weights, learner, inputs.prompts, inputs.held, forward_check
            ),
            forward_check=forward_check,
            trained=trained,
            drift_bound=drift_bound(
                engine, self.model, corrected=self.online is None or self.online.correction != "off"
            ),
        )

    def _rewards(self) -> RewardManager:
        """The run's reward, and those of sources that have their own."""
        source_rewards = self.inputs.datasets.own_rewards()
        default = self._reward(self.ctx.config.reward)
        by_source = {label: self._reward(chosen, label) for label, chosen in source_rewards.items()}
        return RewardManager(default, by_source, self.config.max_missing_fraction)

    def _reward(self, chosen: Any, source: str = "") -> Any:
        """A reward in this process, or in worker processes; that of a verifier has its own."""
        components, workers = self.session.components, self.config.workers_of(chosen, self.ctx.registry)
        if workers is None:
            return components.build("reward", chosen, self.ctx, source)
        return components.add("reward", workers.build(self.ctx), chosen, self.ctx, source)

    def _learner(self, trained: TrainableModule, critic: torch.nn.Module | None) -> Learner:
        """The learner of the module as the strategy has prepared it; a model that has weights only now is probed."""
        module, strategy, config = trained.module, self.strategy, self.config
        rate = None if trained.critic is None else trained.critic.learning_rate
        loaded_later = has_meta_weights(self.model)
        prepared, optimizer = prepare_to_learn(strategy, module, config.optimizer, critic, rate)
        if loaded_later and isinstance(module, PolicyModule) and self.online is not None:
            required = self.online.packing == "on"
            module.options = probe_forward_options(
                strategy, prepared, self.inputs.policy.source, packing_required=required
            )
        return Learner(
            prepared,
            trained.loss,
            strategy,
            config,
            trained.total_updates,
            critic,
            micro_batcher=trained.micro_batcher,
            critic_updates=trained.critic_updates,
            optimizer=optimizer,
        )

    def _evaluator(
        self, generator: RolloutGenerator, rewards: RewardManager, whole_weights: WholeWeights
    ) -> PolicyEvaluator:
        """Held-out prompts and, on rank 0, the benchmarks."""
        config, inputs, ctx = self.config, self.inputs, self.ctx
        of_held = copy(inputs.prompts)  # schedules change how training prompts are written, not these
        held = Lazy(lambda n: of_held.groups([inputs.held[n]], 1)[0], range(len(inputs.held)))
        chosen = ctx.config.benchmarks if self.strategy.rank == 0 else ()
        sampling = (config.eval_sampling or config.sampling).params()
        return PolicyEvaluator(
            *(generator, rewards, inputs.datasets, held, sampling),
            [self.session.components.build("benchmark", benchmark, ctx) for benchmark in chosen],
            whole_weights,
            self.session,
            has_benchmarks=bool(ctx.config.benchmarks),
        )

    def _source(self, generator: RolloutGenerator, rewards: RewardManager, weight_sync: WeightSync) -> InlineSource:
        """Sampling and learning in turn, or sampling ahead in a thread that has its own way to the other ranks."""
        config, prompts = self.config, self.inputs.prompts
        settings = CollectorSettings(
            prompts_per_step=config.prompts_per_step,
            sampling=config.sampling.params(support=self.online is not None and config.sampling.truncates),
            dynamic=config.dynamic_sampling,
            adaptive=config.adaptive_sampling,
        )
        scheduled = config.scheduled(self.inputs.datasets.settings)
        groups = scheduled.get("groups")
        kind = RolloutCollector if groups is None else scheduler("groups", groups)()
        rollouts = None if self.online is None else self.online.rollouts
        comm, on_every_rank = self.strategy, nullcontext
        if self.batches_ahead and rollouts is not None:
            exchanges = groups is not None or weight_sync.needs_ranks
            comm = new_group(self.strategy, rollouts.timeout_s, exchanges)
            on_every_rank = together = partial(engine_on_every_rank, comm) if exchanges else nullcontext
        else:
            whole_weights = weights_to_sample(weight_sync.engine, weight_sync.whole_weights)
            together = partial(sampling_on_every_rank, comm, whole_weights)
        collector = kind(prompts, generator, rewards, comm, settings, together)
        inline = InlineSource(collector, weight_sync, self.session)
        if rollouts is None or not rollouts.max_staleness:
            return inline
        buffered_source = scheduler("ahead", scheduled["ahead"])()
        return buffered_source(inline, rollouts, self.batches_ahead, config.steps, comm, on_every_rank)


def build_loss(ctx: BuildContext, terms: Sequence[LossTerm] = ()) -> CheckedLoss:
    """The run's loss, every answer checked before terms are added to it."""
    return CheckedLoss(ctx.session.components.build_slot("loss", ctx), terms=terms)


def policy_to_train(config: OnlineTrainerConfig, inputs: OnlineInputs, ctx: BuildContext) -> TrainableModule:
    """The policy's module, and its loss with the terms that the settings and a critic add."""
    estimator = ctx.session.components.build_slot("advantage", ctx)
    loss: Loss = build_loss(ctx, policy_terms(config))
    make_module = getattr(estimator, "make_module", PolicyModule)
    if config.sampling.truncates:
        make_module = scheduler("truncated", "trainer.sampling.top_p")()
    module = make_module(inputs.policy.model, config.sampling.temperature, inputs.options)
    critic = estimator if isinstance(estimator, CriticAdvantage) else None
    if critic is not None:
        loss = critic.with_value_loss(loss)
        module.critic, module.on_policy_trunk = critic.critic, critic.on_policy_trunk
    width = int(base_model(inputs.policy.model).config.get_text_config().hidden_size)
    return TrainableModule(
        module,
        loss,
        total_updates=config.steps * config.updates_per_step,
        critic=critic,
        critic_updates=critic.warmup_steps * config.updates_per_step if critic else 0,
        micro_batcher=PolicyMicroBatcher(module, config.micro_batch_size, config.micro_batch_tokens, width),
        estimator=estimator,
    )


def policy_terms(config: OnlineTrainerConfig) -> list[LossTerm]:
    """The importance correction and the terms that the settings ask for, in this order."""
    terms = PolicyTerms(
        kl_coefficient=config.kl.coefficient if config.kl.where == "loss" else 0.0,
        kl_estimator=config.kl.estimator,
        stale=config.rollouts.max_staleness > 0,
        entropy_coefficient=config.entropy_coefficient,
    )
    if config.correction == "off":
        return [terms]
    return [scheduler("importance", "trainer.importance.mode")()(config.importance, config.correction), terms]
