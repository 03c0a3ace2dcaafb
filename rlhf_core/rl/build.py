"""Builds the parts of an on-policy run, each with what it needs and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from rlhf_core.distributed.engine_loss import engine_on_every_rank, sampling_on_every_rank
from rlhf_core.distributed.group import new_group
from rlhf_core.models.sampler_policy import SamplerPolicy, trained_names
from rlhf_core.models.slices import has_no_weights, read_weights
from rlhf_core.plugins.component_errors import label_of, remember_label
from rlhf_core.plugins.context import BuildContext
from rlhf_core.plugins.loss_contract import CheckedLoss
from rlhf_core.plugins.protocols import Collectives, CriticAdvantage, Loss, RolloutEngine, RunOptimizer, Strategy
from rlhf_core.rl.advantages import AdvantageStep
from rlhf_core.rl.checkpoint import OnlineCheckpoint, PolicyWeights
from rlhf_core.rl.collector import CollectorSettings, RolloutCollector, collect_now, publish
from rlhf_core.rl.config import OnlineTrainerConfig, RolloutTrainerConfig
from rlhf_core.rl.inputs import OnlineInputs
from rlhf_core.rl.loss_terms import EntropyBonus, ImportanceCorrection, KLTerm
from rlhf_core.rl.rollout_worker import RolloutWorker
from rlhf_core.rl.scheduler import RolloutBuffer, RolloutScheduler
from rlhf_core.rl.sharded_trial import tried_options
from rlhf_core.rl.update import UpdateStep
from rlhf_core.runs.checkpoint_manager import Checkpoint
from rlhf_core.runs.events import EventSink
from rlhf_core.training.forward_check import ForwardCheck
from rlhf_core.training.generation import RolloutGenerator
from rlhf_core.training.learner import Learner
from rlhf_core.training.micro_batches import PolicyMicroBatcher
from rlhf_core.training.optimizer import prepare_to_learn
from rlhf_core.training.policy_evaluator import PolicyEvaluator
from rlhf_core.training.policy_module import PolicyModule, ReferencePolicy
from rlhf_core.training.rewards import RewardManager
from rlhf_core.training.rollout_batch import RolloutBatch
from rlhf_core.training.structure import base_model
from rlhf_core.training.timer import Timer
from rlhf_core.training.weight_sync import WeightSync, keeps_own_weights, weights_to_sample
from rlhf_core.workers.reward_workers import RewardWorkers


@dataclass(frozen=True)
class OnlineParts:
    """The stages of a step, in order, and what stands around them."""

    scheduler: RolloutScheduler
    rewards: RewardManager
    advantages: AdvantageStep
    forward_check: ForwardCheck
    update: UpdateStep
    learner: Learner
    """Owns the optimizer and the policy version."""
    reference: ReferencePolicy | None
    evaluator: PolicyEvaluator
    checkpoint: OnlineCheckpoint
    critic_warmup_steps: int
    """Steps in which only the critic learns."""


def build_online(
    config: OnlineTrainerConfig, ctx: BuildContext, inputs: OnlineInputs, checkpoint: Checkpoint | None
) -> OnlineParts:
    """Build engine, rewards, advantage, loss and optimizer, and load the checkpoint's weights.

    Args:
        config: the trainer's settings.
        ctx: strategy and session are set.
        inputs: data and policy.
        checkpoint: to go on from; the parts' states are loaded by the caller.
    """
    ctx = ctx.with_(policy=inputs.policy, datasets=inputs.datasets)
    session, strategy, model = ctx.session, ctx.strategy, inputs.policy.model
    names = trained_names(model)
    copied = config.batches_ahead and not keeps_own_weights(ctx.config.rollout)
    sampler = SamplerPolicy(model) if copied else None
    engine = build_engine(ctx, inputs, sampler)
    generator, rewards = build_sampling(config, ctx, inputs, engine)
    estimator = build(ctx, "advantage")
    critic = estimator if isinstance(estimator, CriticAdvantage) else None
    loss = policy_loss(build_loss(ctx), config)
    module = PolicyModule(model, config.sampling.temperature, inputs.options)
    if critic is not None:
        loss = critic.with_value_loss(loss)
        module.critic, module.on_policy_trunk = critic.critic, critic.on_policy_trunk
    weights = PolicyWeights(inputs.policy, module.critic, inputs.reference if config.kl.sync_every else None)
    if checkpoint is not None:
        weights.load(checkpoint)
    if sampler is not None and has_no_weights(sampler.model):
        read_weights(sampler.model, strategy.device)
        sampler.model.to(strategy.device)  # adapters and buffers, which have values
    prepared, optimizer = _prepare(config, strategy, module, critic, inputs.policy.source)
    whole_weights = partial(strategy.gathered, prepared)
    width = int(base_model(model).config.get_text_config().hidden_size)
    micro_batcher = PolicyMicroBatcher(module, config.micro_batch_size, config.micro_batch_tokens, width)
    warmup_steps = critic.warmup_steps if critic else 0
    updates, each = config.steps * config.updates_per_step, config.updates_per_step
    learner = Learner(
        prepared, loss, strategy, config, updates, module.critic,
        micro_batcher=micro_batcher, critic_updates=warmup_steps * each, optimizer=optimizer,
    )  # fmt: skip
    to_sample = weights_to_sample(engine, whole_weights)
    evaluator = build_evaluator(config, ctx, inputs, generator, rewards, to_sample)
    session.counts.update({} if checkpoint else inputs.datasets.counts)
    reference = reference_policy(config, inputs, prepared, strategy)
    forward_check = ForwardCheck(module, strategy, prepared, session.counts, done=not config.self_check)
    label = session.components.label(estimator)
    return OnlineParts(
        scheduler=_build_scheduler(config, ctx, inputs, generator, rewards, whole_weights, sampler, names),
        rewards=rewards,
        advantages=AdvantageStep(estimator, label, reference, module, micro_batcher, learner.no_grad, strategy, config),
        forward_check=forward_check,
        update=UpdateStep(learner, module, micro_batcher, strategy, config, session, ctx.seed),
        learner=learner,
        reference=reference,
        evaluator=evaluator,
        checkpoint=OnlineCheckpoint(
            session.checkpoints, strategy, weights, learner, inputs.prompts, inputs.held, forward_check
        ),
        critic_warmup_steps=warmup_steps,
    )


@dataclass(frozen=True)
class RolloutTrainingParts:
    """What a trainer with a loss of its own kind (pairs, say) needs to learn from rollouts of its policy."""

    collector: RolloutCollector
    rewards: RewardManager
    learner: Learner
    reference: ReferencePolicy | None
    evaluator: PolicyEvaluator
    checkpoint: OnlineCheckpoint
    whole_weights: Callable[[], AbstractContextManager[None]]
    weight_sync: WeightSync
    strategy: Collectives

    def sync(self, version: int) -> None:
        """Let what samples have the policy as it is now, before it is evaluated; all ranks call it together.

        Raises:
            EngineUnavailable: on every rank, if the engine of one is gone.
        """
        publish(self.weight_sync, version, self.strategy)

    def collect(self, number: int, version: int, events: EventSink, timer: Timer) -> RolloutBatch:
        """Sample with the policy as it is now, and score; all ranks call it together, first of all in a step.

        Arguments as of :meth:`~rlhf_core.rl.collector.RolloutCollector.collect`.

        Raises:
            ScoreError: too many scores are missing.
            EngineUnavailable: on every rank, if the engine of one is gone.
        """
        return collect_now(self.collector, self.weight_sync, self.strategy, number, version, events, timer)


def build_rollout_training(
    config: RolloutTrainerConfig,
    ctx: BuildContext,
    inputs: OnlineInputs,
    checkpoint: Checkpoint | None,
    *,
    module: torch.nn.Module,
    total_updates: int,
    wrap_loss: Callable[[Loss], Loss] = lambda loss: loss,
) -> RolloutTrainingParts:
    """Build engine, rewards, loss and optimizer around a module of the caller, and load the checkpoint's weights.

    Args:
        config: the trainer's settings.
        ctx: strategy and session are set.
        inputs: data and policy.
        checkpoint: to go on from; the parts' states are loaded by the caller.
        module: ``module(items)`` returns the batch that the loss consumes; its part ``model`` is the policy.
        total_updates: for the learning-rate schedule.
        wrap_loss: adds terms to the run's loss.
    """
    ctx = ctx.with_(policy=inputs.policy, datasets=inputs.datasets)
    session, strategy = ctx.session, ctx.strategy
    names = trained_names(inputs.policy.model)
    generator, rewards = build_sampling(config, ctx, inputs, build_engine(ctx, inputs))
    loss = wrap_loss(build_loss(ctx))
    weights = PolicyWeights(inputs.policy, None, inputs.reference if config.kl.sync_every else None)
    if checkpoint is not None:
        weights.load(checkpoint)
    prepared, optimizer = prepare_to_learn(strategy, module, config.optimizer)
    whole_weights = partial(strategy.gathered, prepared)
    learner = Learner(prepared, loss, strategy, config, total_updates, optimizer=optimizer)
    to_sample = weights_to_sample(generator.engine, whole_weights)
    evaluator = build_evaluator(config, ctx, inputs, generator, rewards, to_sample)
    session.counts.update({} if checkpoint else inputs.datasets.counts)
    settings, together = collector_settings(config, inputs), sampling_on_every_rank(strategy, to_sample)
    return RolloutTrainingParts(
        collector=RolloutCollector(inputs.prompts, generator, rewards, strategy, settings, together),
        rewards=rewards,
        learner=learner,
        reference=reference_policy(config, inputs, prepared, strategy),
        evaluator=evaluator,
        checkpoint=OnlineCheckpoint(session.checkpoints, strategy, weights, learner, inputs.prompts, inputs.held),
        whole_weights=whole_weights,
        weight_sync=WeightSync(inputs.policy.model, whole_weights, None, generator.engine, names, strategy),
        strategy=strategy,
    )


def build(ctx: BuildContext, kind: str) -> Any:
    """The run's component of a kind."""
    return ctx.session.components.build(kind, getattr(ctx.config, kind), ctx)


def build_loss(ctx: BuildContext) -> Loss:
    """The run's loss, every answer checked before terms are added to it."""
    loss = build(ctx, "loss")
    return CheckedLoss(loss, ctx.session.components.label(loss))


def build_engine(ctx: BuildContext, inputs: OnlineInputs, sampler: SamplerPolicy | None = None) -> RolloutEngine:
    """The rollout engine, over the policy itself or over a copy of it."""
    policy = inputs.policy if sampler is None else replace(inputs.policy, model=sampler.model)
    return build(ctx.with_(policy=policy), "rollout")


def build_sampling(
    config: RolloutTrainerConfig, ctx: BuildContext, inputs: OnlineInputs, engine: RolloutEngine
) -> tuple[RolloutGenerator, RewardManager]:
    """What samples completions, and what scores them."""
    components = ctx.session.components
    generator = RolloutGenerator(build(ctx, "agent"), engine, ctx.seed, components.label)
    default = build_reward(config, ctx, ctx.config.reward)
    source_rewards = inputs.datasets.own_rewards()
    by_source = {label: build_reward(config, ctx, chosen, label) for label, chosen in source_rewards.items()}
    return generator, RewardManager(default, by_source, config.max_missing_fraction, components.label)


def build_reward(config: RolloutTrainerConfig, ctx: BuildContext, chosen: Any, source: str = "") -> Any:
    """A reward in this process, or in worker processes; that of a verifier has its own."""
    components = ctx.session.components
    if not config.reward_workers or chosen.has_workers:
        return components.build("reward", chosen, ctx, source)
    workers = RewardWorkers(chosen, ctx, config.reward_workers, config.reward_timeout_s)
    return components.add("reward", workers, chosen, ctx, source)


def build_evaluator(
    config: RolloutTrainerConfig,
    ctx: BuildContext,
    inputs: OnlineInputs,
    generator: RolloutGenerator,
    rewards: RewardManager,
    whole_weights: Callable[[], AbstractContextManager[None]],
) -> PolicyEvaluator:
    """Held-out prompts and, on rank 0, the benchmarks."""
    chosen = ctx.config.benchmarks if ctx.strategy.rank == 0 else ()
    return PolicyEvaluator(
        generator,
        rewards,
        inputs.datasets,
        inputs.prompts.groups(inputs.held, 1),
        (config.eval_sampling or config.sampling).params(),
        [ctx.session.components.build("benchmark", benchmark, ctx) for benchmark in chosen],
        whole_weights,
        ctx.session,
        has_benchmarks=bool(ctx.config.benchmarks),
    )


def reference_policy(
    config: RolloutTrainerConfig, inputs: OnlineInputs, trained: torch.nn.Module, strategy: Strategy
) -> ReferencePolicy | None:
    """The reference policy, if the run keeps one; after its weights were loaded. All ranks call it."""
    if inputs.reference is None:
        return None
    return ReferencePolicy(inputs.reference, inputs.policy.model, trained, strategy, config.kl.sync_every)


def collector_settings(config: RolloutTrainerConfig, inputs: OnlineInputs) -> CollectorSettings:
    """Sizes and rules of the run's rollout batches."""
    return CollectorSettings(
        prompts_per_step=config.prompts_per_step,
        sampling=config.sampling.params(),
        dynamic=config.dynamic_sampling,
        adaptive=config.adaptive_sampling,
        observe_rates=inputs.datasets.settings.difficulty is not None,
    )


def policy_loss(loss: Loss, config: OnlineTrainerConfig) -> Loss:
    """The algorithm's loss with the terms that the settings add to it, named in errors as the algorithm's."""
    label = label_of(loss.loss if isinstance(loss, CheckedLoss) else loss, "loss")
    if config.correction != "off":
        loss = ImportanceCorrection(loss, config.importance, config.correction)
    if config.kl.coefficient > 0 and config.kl.where == "loss":
        loss = KLTerm(loss, config.kl.coefficient, config.kl.estimator, stale=config.rollouts.max_staleness > 0)
    if config.entropy_coefficient > 0:
        loss = EntropyBonus(loss, config.entropy_coefficient)
    remember_label(loss, label)
    return loss


def _prepare(
    config: OnlineTrainerConfig,
    strategy: Strategy,
    module: PolicyModule,
    critic: CriticAdvantage | None,
    path: str,
) -> tuple[torch.nn.Module, RunOptimizer]:
    """Let the strategy prepare the policy's module and make its optimizer; a model that has weights only now is tried.

    Args:
        config: the trainer's settings.
        strategy: shards the module, or not.
        module: policy and critic.
        critic: None trains none.
        path: of the model, as the user wrote it.
    """
    untried = has_no_weights(module.model)
    rate = None if critic is None else critic.learning_rate
    prepared, optimizer = prepare_to_learn(strategy, module, config.optimizer, module.critic, rate)
    if untried:
        module.options = tried_options(config, strategy, prepared, path)
    return prepared, optimizer


def _build_scheduler(
    config: OnlineTrainerConfig,
    ctx: BuildContext,
    inputs: OnlineInputs,
    generator: RolloutGenerator,
    rewards: RewardManager,
    whole_weights: Callable[[], AbstractContextManager[None]],
    sampler: SamplerPolicy | None,
    names: Sequence[str],
) -> RolloutScheduler:
    """Sampling and learning in turn, or sampling ahead in a thread that has its own way to the other ranks."""
    settings, session = collector_settings(config, inputs), ctx.session
    engine = generator.engine
    weight_sync = WeightSync(inputs.policy.model, whole_weights, sampler, engine, names, ctx.strategy)
    buffer = RolloutBuffer(config.rollouts, config.batches_ahead)
    if not config.batches_ahead:
        together = sampling_on_every_rank(ctx.strategy, weights_to_sample(engine, whole_weights))
        collector = RolloutCollector(inputs.prompts, generator, rewards, ctx.strategy, settings, together)
        return RolloutScheduler(collector, buffer, None, weight_sync, session, config.steps)
    timeout = config.rollouts.timeout_s
    exchanges = settings.shares_groups or weight_sync.needs_ranks
    comm = new_group(ctx.strategy, timeout, exchanges)
    on_every_rank = partial(engine_on_every_rank, comm) if exchanges else nullcontext
    collector = RolloutCollector(inputs.prompts, generator, rewards, comm, settings, on_every_rank)
    model = None if sampler is None else sampler.model
    worker = RolloutWorker(collector.collect, weight_sync, model, timeout, comm, on_every_rank)
    session.components.attach("the rollout worker", worker)
    return RolloutScheduler(collector, buffer, worker, weight_sync, session, config.steps)
