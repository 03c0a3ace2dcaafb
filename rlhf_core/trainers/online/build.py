"""Builds the rooms of an on-policy run. Cheap checks first; what is expensive waits for :meth:`furnish`."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_core.context import BuildContext
from rlhf_core.contracts import check_advantages, check_returns
from rlhf_core.data.curriculum import apply_curriculum
from rlhf_core.data.datasets import Datasets
from rlhf_core.data.difficulty import DifficultyOrder
from rlhf_core.data.length_filter import admit
from rlhf_core.data.mixture import check_fingerprint, fingerprint, interleave
from rlhf_core.data.order import PromptOrder
from rlhf_core.models.load import load_policy
from rlhf_core.models.precision import set_precision
from rlhf_core.models.prompt_format import Formatter, end_ids, template_warning
from rlhf_core.models.reference import Reference
from rlhf_core.models.sampler_policy import SamplerPolicy
from rlhf_core.models.save import load_weights, write_folder
from rlhf_core.policy.forward_options import ForwardOptions, allowed
from rlhf_core.policy.structure import base_model, compute_dtype
from rlhf_core.protocols import CriticAdvantage, RewardModel, RolloutEngine
from rlhf_core.runs.checkpoint import seed_everything
from rlhf_core.runs.component_set import register_sources
from rlhf_core.runs.session import WriteModel
from rlhf_core.trainers.common.config import OnlineTrainerConfig
from rlhf_core.trainers.common.forward_check import choose, self_check, warn
from rlhf_core.trainers.common.learner import Learner
from rlhf_core.trainers.common.micro_batches import balance, by_tokens, flops, in_order
from rlhf_core.trainers.common.policy_evaluator import Evaluator
from rlhf_core.trainers.common.policy_module import KLTerm, PolicyModule
from rlhf_core.trainers.common.training_sample import TrainingSample, make_item
from rlhf_core.trainers.online.collector import RolloutCollector
from rlhf_core.trainers.online.critic import load_critic, save_critic
from rlhf_core.trainers.online.entropy import EntropyBonus
from rlhf_core.trainers.online.generation import RolloutGenerator
from rlhf_core.trainers.online.importance import ImportanceCorrection
from rlhf_core.trainers.online.prompts import PromptLoader
from rlhf_core.trainers.online.rewards import RewardManager
from rlhf_core.trainers.online.scheduler import RolloutScheduler
from rlhf_core.types import Advantages, Prompt, Rollout, Score, TokenValues

log = logging.getLogger("rlhf.models")


class OnlineParts:
    """Rooms of one run, and what of them a checkpoint holds.

    Args:
        config: the trainer's settings.
        ctx: strategy and session are set; everything else is made here.

    Raises:
        UserError: the model, dataset and settings do not fit each other.
    """

    def __init__(self, config: OnlineTrainerConfig, ctx: BuildContext) -> None:
        self.config, self.seed, self.strategy = config, ctx.seed, ctx.strategy
        seed_everything(ctx.seed)
        self.datasets = Datasets(ctx.config.dataset, ctx)
        register_sources(self.datasets, ctx)
        train, held = self.datasets.prompts("train"), self.datasets.prompts("heldout")
        settings = ctx.config.dataset
        if settings.curriculum is not None:
            seed = ctx.seed if settings.shuffle else None
            train, counts = apply_curriculum(settings.curriculum, train, held, seed)
            self.datasets.counts.update(counts)
        self.policy = load_policy(ctx.config.model)
        self.formatter = Formatter(self.policy.tokenizer, ctx.config.model.prompt_format)
        if doubt := template_warning(self.formatter, end_ids(self.policy.model, self.policy.tokenizer)):
            log.warning("%s", doubt)
        train, held = self._admit(train, "sampling"), self._admit(held, "eval_sampling")
        self.has_gold = bool(held) and self.datasets.has_gold(held[0])
        self.policy.model.to(self.strategy.device)
        set_precision(self.policy.model, config.precision)
        self.reference = Reference.of(self.policy.model) if self._wants_reference else None
        wanted = ForwardOptions(config.share_prefix, config.packing != "off", config.chunked_head)
        paths = allowed(self.policy.model, wanted, packing_required=config.packing == "on")
        self.foundry = PolicyModule(self.policy.model, config.sampling.temperature, paths)
        self.self_checked = not config.self_check
        self.ctx = ctx.with_(policy=self.policy, datasets=self.datasets)
        shuffle = settings.shuffle and (settings.curriculum is None or settings.curriculum.order == "none")
        order = (
            PromptOrder(train, self.datasets.weights, ctx.seed, shuffle)
            if settings.difficulty is None
            else DifficultyOrder(settings.difficulty, train, self.datasets.weights, ctx.seed, shuffle)
        )
        order.require(config.prompts_per_step)
        self.library = PromptLoader(order, self.encode, config.group_size)
        self.held = [held[i] for i in interleave([p.source for p in held], self.datasets.weights)]

    def furnish(self, checkpoint: tuple[Path, dict[str, Any]] | None) -> None:
        """Build engine, reward, loss and optimizer, and load the checkpoint's weights."""
        ctx, config = self.ctx, self.config
        ahead = config.rollouts.ahead(config.updates_per_step)
        self.copy = SamplerPolicy(self.policy.model) if ahead else None
        sampled = self.policy if self.copy is None else replace(self.policy, model=self.copy.model)
        engine = ctx.session.parts.build("rollout", ctx.config.rollout, ctx.with_(policy=sampled))
        self._furnish_sampling(engine)
        self.advantage = self._build("advantage")
        critic = self.advantage if isinstance(self.advantage, CriticAdvantage) else None
        loss = self._build("loss")
        if config.correction != "off":
            loss = ImportanceCorrection(loss, config.importance, config.correction)
        if config.kl.coefficient > 0 and config.kl.where == "loss":
            loss = KLTerm(loss, config.kl.coefficient, config.kl.estimator)
        if config.entropy_coefficient > 0:
            loss = EntropyBonus(loss, config.entropy_coefficient)
        if critic is not None:
            loss = critic.with_value_loss(loss)
            self.foundry.critic, self.foundry.on_policy_trunk = critic.critic, critic.on_policy_trunk
        if checkpoint:
            load_weights(self.policy.model, checkpoint[0] / "model")
            if critic is not None:
                load_critic(critic.critic, checkpoint[0])
            if self.reference is not None and config.kl.sync_every:
                self.reference.load(checkpoint[0])
        self.module = self.strategy.prepare(self.foundry)
        each = config.updates_per_step
        self.updater = Learner(
            self.module,
            loss,
            self.strategy,
            config,
            config.steps * each,
            self.foundry.critic,
            critic.learning_rate if critic else None,
            self.cut,
            critic.warmup_steps * each if critic else 0,
        )
        self._furnish_evaluation()
        ctx.session.counts.update({} if checkpoint else self.datasets.counts)
        self.pipeline = RolloutScheduler(self, config, ctx.session)

    def _furnish_sampling(self, engine: RolloutEngine) -> None:
        """Rooms 2 and 3, and what brings them prompts."""
        session, who = self.ctx.session, self.ctx.session.parts.label
        self.studio = RolloutGenerator(self._build("agent"), engine, self.seed, who)
        self.reward = self._build("reward")
        own = {label: self._own_reward(label, cfg) for label, cfg in self.datasets.own_rewards().items()}
        self.court = RewardManager(self.reward, own, self.config.max_missing_fraction, who)
        self.intake = RolloutCollector(self, self.config, session)

    def _furnish_evaluation(self) -> None:
        """Held-out prompts and, on rank 0, the benchmarks."""
        held = self.library.groups(self.held, 1)
        sampling = (self.config.eval_sampling or self.config.sampling).params()
        self.evaluator = Evaluator(self.studio, self.court, self.datasets, held, sampling, self.strategy)
        own = self.ctx.config.benchmarks if self.strategy.rank == 0 else ()
        self.benchmarks = [self.ctx.session.parts.build("benchmark", b, self.ctx) for b in own]

    def measure(self) -> dict[str, float]:
        """Metrics of every benchmark, ``eval/NAME/...``, on rank 0; one that fails is counted and left out."""
        found: dict[str, float] = {}
        for one in self.benchmarks:
            part = self.ctx.session.parts.of(one)
            ask = partial(one.evaluate, self.studio.engine, self.updater.version)
            made = self.ctx.session.hooks.call(f"evaluate() of {part.label}", f"{part.key}:evaluate", ask) or {}
            found |= {f"eval/{part.key.removeprefix('benchmark/')}/{k}": float(v) for k, v in made.items()}
        return found

    def _build(self, kind: str) -> Any:
        chosen = getattr(self.ctx.config, kind)
        return self.ctx.session.parts.build(kind, chosen, self.ctx)

    def _own_reward(self, label: str, chosen: Any) -> RewardModel:
        return self.ctx.session.parts.build("reward", chosen, self.ctx, label)

    @property
    def _wants_reference(self) -> bool:
        return self.config.kl.coefficient > 0 or self.config.kl.track

    def encode(self, prompt: Prompt) -> tuple[int, ...]:
        """Token ids of a prompt, exactly as the policy is fed."""
        return self.formatter.encode(prompt.messages)

    def _admit(self, prompts: list[Prompt], sampling: str) -> list[Prompt]:
        """The prompts that leave room for what is sampled from them: ``sampling`` or ``eval_sampling``."""
        settings = self.datasets.settings
        chosen = getattr(self.config, sampling) or self.config.sampling
        name = sampling if chosen is not self.config.sampling else "sampling"
        kept, dropped = admit(
            prompts,
            self.encode,
            limit=settings.max_prompt_tokens,
            context=self.policy.context,
            max_tokens=chosen.max_tokens,
            max_dropped_fraction=settings.max_dropped_fraction,
            setting=f"trainer.{name}.max_tokens",
        )
        self.datasets.counts.update(dropped)
        return kept

    def advantages(
        self, rollouts: list[Rollout], scores: list[Score], group_ids: list[int], tokens: list[TokenValues] | None
    ) -> Advantages:
        """One advantage per rollout; the estimator is not asked about none.

        Raises:
            PluginError: the estimator returned something else.
        """
        if not rollouts:
            return Advantages([])
        told = (rollouts, scores, group_ids) if tokens is None else (rollouts, scores, group_ids, tokens)
        who = self.ctx.session.parts.label(self.advantage)
        estimate = check_advantages(self.advantage.estimate(*told), rollouts, who)
        return estimate if tokens is None else check_returns(estimate, rollouts, who)

    def cut(self, items: Sequence[TrainingSample]) -> list[list[int]]:
        """Micro-batches of this rank's items, by tokens if so set."""
        budget = self.config.micro_batch_tokens
        if budget is None:
            return in_order(self.config.micro_batch_size)(items)
        return by_tokens(items, budget, self.foundry.paths, self._width)

    def share(self, groups: Sequence[Sequence[TrainingSample]]) -> list[list[int]]:
        """Which groups each rank trains on: in equal numbers, or of equal flops if micro-batches go by tokens."""
        world = self.strategy.world_size
        if self.config.micro_batch_tokens is None:
            return [part.tolist() for part in np.array_split(np.arange(len(groups)), world)]
        return balance([flops(g, self.foundry.paths.share_prefix, self._width) for g in groups], world)

    @property
    def _width(self) -> int:
        return int(base_model(self.policy.model).config.get_text_config().hidden_size)

    def self_check(self, rollouts: list[Rollout]) -> None:
        """Once a run: compare the optimised forward with the plain one; every rank switches off what differs on any.

        With a strategy that shards the weights, logprobs are compared and gradients are not.
        """
        if self.self_checked:
            return
        items = choose([make_item(r, 0.0, False) for r in rollouts])
        with self.strategy.gathered(self.module):
            own = self_check(
                self.policy.model,
                items,
                self.foundry.temperature,
                self.foundry.paths,
                compute_dtype(self.policy.model),
                gradient=not self.strategy.sharded,
            )
        found = {f.name: f for findings in self.strategy.gather_objects(own) for f in findings}
        if self.strategy.rank == 0:
            warn(list(found.values()))
        self.ctx.session.counts.update({f"switched_off_{name}": 1 for name in found})
        self.foundry.paths = self.foundry.paths.without(*found)
        self.self_checked = True

    def token_values(self, rollouts: list[Rollout], references: list[Any] | None) -> list[TokenValues] | None:
        """What the critic says of each completion; None without one."""
        if self.foundry.critic is None:
            return None
        with self.strategy.gathered(self.module):
            rows = self.foundry.values([make_item(r, 0.0, False) for r in rollouts], self.cut)
        return [TokenValues(row, None if references is None else references[i]) for i, row in enumerate(rows)]

    def critic_only(self, step: int) -> bool:
        """Whether a step is one of the critic's warm-up."""
        return self.foundry.critic is not None and step <= self.advantage.warmup_steps

    def reference_logprobs(self, rollouts: list[Rollout]) -> list[Any] | None:
        """Logprobs ``[T]`` of each completion under the reference policy; None when nothing asks for them."""
        if self.reference is None:
            return None
        items = [make_item(r, 0.0, False) for r in rollouts]
        gathered = self.strategy.gathered(self.module) if self.reference.adapter else contextlib.nullcontext()
        with gathered, self.reference.active() as model:
            room = PolicyModule(model, self.config.sampling.temperature, self.foundry.paths)
            return room.logprobs(items, self.cut)

    def sync_reference(self, step: int) -> dict[str, float]:
        """Let the policy be the reference from here on, if this step is to end so; returns a metric that says it."""
        every = self.config.kl.sync_every
        if self.reference is None or every == 0 or step % every:
            return {}
        with self.strategy.gathered(self.module):
            self.reference.sync(self.policy.model)
        return {"reference_synced": 1.0}

    def state_dict(self) -> dict[str, Any]:
        """Optimizer and data position; the session keeps the components' states."""
        return {
            "updater": self.updater.state_dict(),
            "order": self.library.order.state_dict(),
            "heldout": fingerprint(self.held),
            "paths": self.foundry.paths.state(),
            "self_checked": self.self_checked,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore :meth:`state_dict`.

        Raises:
            DatasetError: the prompts are not those of then.
        """
        check_fingerprint("held-out prompts", state["heldout"], fingerprint(self.held))
        self.foundry.paths, self.self_checked = ForwardOptions(**state["paths"]), state["self_checked"]
        self.updater.load_state_dict(state["updater"])
        self.library.order.load_state_dict(state["order"])

    def writer(self) -> WriteModel:
        """Return what writes a checkpoint's weights (adapters, with LoRA) and tokenizer, beside them the critic
        and a reference that is synced.

        All ranks call it; the critic is gathered here.
        """
        critic = self.foundry.critic
        gathered = None if critic is None else self.strategy.full_state(critic)

        def write(folder: Path, weights: Mapping[str, Any]) -> None:
            write_folder(self.policy.model, self.policy.tokenizer, folder, weights)
            if critic is not None and gathered is not None:
                save_critic(critic, gathered, folder.parent)
            if self.reference is not None and self.config.kl.sync_every:
                self.reference.save(folder.parent)

        return write

    def write_final(self, folder: Path, weights: Mapping[str, Any]) -> None:
        """Write the final model in plain Hugging Face form, adapters merged."""
        write_folder(self.policy.model, self.policy.tokenizer, folder, weights, merge=True)
