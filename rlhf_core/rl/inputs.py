"""What a run that samples from its policy starts from: data, policy and reference. Cheap checks come first."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from rlhf_core.config.run import precision_of
from rlhf_core.data.datasets import Datasets, admit
from rlhf_core.data.order import PromptOrder
from rlhf_core.models.load import LoadedModel, load_policy
from rlhf_core.models.prompt_format import Formatter
from rlhf_core.models.reference import Reference
from rlhf_core.models.slices import has_meta_weights
from rlhf_core.plugins.context import BuildContext
from rlhf_core.plugins.entry_points import scheduler
from rlhf_core.plugins.strategy_protocols import ShardedLoading
from rlhf_core.rl.config import OnlineTrainerConfig, RolloutTrainerConfig
from rlhf_core.rl.sources import PromptLoader
from rlhf_core.runs.component_set import register_sources
from rlhf_core.training.forward import ForwardOptions, allowed
from rlhf_core.training.loop import record_trained
from rlhf_core.types.errors import PluginError
from rlhf_core.types.rollouts import Prompt

log = logging.getLogger("rlhf.models")


@dataclass(frozen=True)
class OnlineInputs:
    """Loaded once, before the run directory is opened; nothing of it has been trained."""

    datasets: Datasets
    policy: LoadedModel
    reference: Reference | None
    options: ForwardOptions
    """Of the policy's forward: what the settings want and, once it has weights, what the model allows."""
    prompts: PromptLoader
    held: Sequence[Prompt]
    """Held-out prompts, sources in turn."""
    has_gold: bool


def load_online_inputs(config: RolloutTrainerConfig, ctx: BuildContext, *, wants_reference: bool) -> OnlineInputs:
    """Load data and policy."""
    datasets = Datasets.of(ctx)
    register_sources(datasets, ctx)
    train, held = _split_prompts(datasets, ctx)
    tried_later = isinstance(ctx.strategy, ShardedLoading) and isinstance(config, OnlineTrainerConfig)
    policy = load_policy(ctx.config.model, weights=not tried_later)  # other trainers try the model before they shard it
    record_trained(ctx, policy)
    formatter = Formatter(policy.tokenizer, ctx.config.model.prompt_format, ctx.config.model.tool_format)
    train = _fitting(train, formatter, config, datasets, policy, "sampling")
    held = _fitting(held, formatter, config, datasets, policy, "eval_sampling")
    later = has_meta_weights(policy.model)
    policy.run_on(ctx.device, precision_of(ctx.config))
    reference = Reference.of(policy.model) if wants_reference else None
    wanted = ForwardOptions(config.share_prefix, config.packing != "off", config.chunked_head)
    options = wanted if later else allowed(policy.model, wanted, packing_required=config.packing == "on")
    order = _prompt_order(train, datasets, ctx.seed)
    order.require(config.prompts_per_step)
    return OnlineInputs(
        datasets=datasets,
        policy=policy,
        reference=reference,
        options=options,
        prompts=PromptLoader(order, formatter.encode_prompt, config.group_size),
        held=datasets.interleaved(held),
        has_gold=bool(held) and datasets.has_gold(held[0]),
    )


def _split_prompts(datasets: Datasets, ctx: BuildContext) -> tuple[Sequence[Prompt], Sequence[Prompt]]:
    """(Train, held-out), the curriculum applied."""
    train, held = datasets.prompts("train"), datasets.prompts("heldout")
    settings = datasets.settings
    if settings.curriculum is not None:
        seed = ctx.seed if settings.shuffle else None
        curriculum = scheduler("curriculum", "dataset.curriculum")()(settings.curriculum)
        train, counts = curriculum.apply(train, held, seed)
        datasets.counts.update(counts)
    return train, held


def _fitting(
    prompts: Sequence[Prompt],
    formatter: Formatter,
    config: RolloutTrainerConfig,
    datasets: Datasets,
    policy: LoadedModel,
    setting: str,
) -> Sequence[Prompt]:
    """The prompts that leave room for what is sampled from them, by ``sampling`` or ``eval_sampling``."""
    sampling = getattr(config, setting) or config.sampling
    name = setting if sampling is not config.sampling else "sampling"
    try:
        lengths_of = scheduler("lengths", "dataset")()(formatter)
    except PluginError:  # each is then encoded
        lengths_of = None
    fitting, dropped = admit(
        prompts,
        formatter.encode_prompt,
        datasets.settings,
        context=policy.context,
        max_tokens=sampling.max_tokens,
        setting=f"trainer.{name}.max_tokens",
        lengths_of=lengths_of,
    )
    datasets.counts.update(dropped)
    return fitting


def _prompt_order(train: Sequence[Prompt], datasets: Datasets, seed: int) -> PromptOrder:
    settings = datasets.settings
    shuffle = settings.shuffle and (settings.curriculum is None or settings.curriculum.order == "none")
    if settings.difficulty is None:
        return PromptOrder(train, datasets.weights, seed, shuffle)
    order = scheduler("difficulty", "dataset.difficulty")()
    return order(settings.difficulty, train, datasets.weights, seed, shuffle)
