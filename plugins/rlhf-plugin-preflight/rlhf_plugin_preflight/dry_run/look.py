"""What a run would do, found out without training: its models and its data looked at, its work counted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlhf_core.models import model_paths
from rlhf_plugin_preflight.dry_run.model import ModelFacts, inspect_model
from rlhf_plugin_preflight.dry_run.rows import Rows, check_hub_model, read_all

if TYPE_CHECKING:
    from rlhf_core.config import BuildContext, RunConfig

NOT_COUNTED = "activations, reward models, teacher, critic, the sampler's cache, libraries"


def keeps_reference(run: RunConfig) -> bool:
    """Whether a frozen copy of the policy is kept; with LoRA the reference is the adapter switched off."""
    trainer: Any = run.trainer
    if run.model.lora is not None:
        return False
    kl = getattr(trainer, "kl", None)
    if kl is not None:
        return bool(kl.track or getattr(kl, "coefficient", 0) > 0)
    return bool(getattr(trainer, "sample_prompts", 0) and getattr(trainer, "track_kl", False))


def reference_bytes(run: RunConfig, weights: int, parameters: int) -> int:
    """Bytes of that copy; ``weights`` are the policy's, ``parameters`` their number."""
    dtype = getattr(getattr(run.trainer, "reference", None), "dtype", None)
    size = {None: weights, "float32": 4 * parameters, "bfloat16": 2 * parameters}[dtype]
    return size if keeps_reference(run) else 0


def estimate_memory(config: RunConfig, model: ModelFacts, longest: int) -> dict[str, int]:
    """Bytes of each part in one process that holds the whole model; :data:`NOT_COUNTED` comes on top."""
    trainer: Any = config.trainer
    return {
        "weights": model.weight_bytes,
        "gradients": model.trainable_bytes,
        "optimizer": round(trainer.optimizer.moments * model.trainable_bytes),
        "reference": model.weight_bytes if keeps_reference(config) else 0,
        "logits": _logits(trainer, model.vocabulary, longest) if trains_policy(config) else 0,
    }


def trains_policy(config: RunConfig) -> bool:
    """Whether the run trains a model that generates text; else a reward model, whose head gives one number."""
    trainer = config.trainer
    return hasattr(trainer, "sampling") or getattr(trainer, "feeds", None) in (None, "token_advantages")


def _logits(trainer: Any, vocabulary: int, longest: int) -> int:
    """Logits of a micro-batch and their gradient in float32; with the chunked head a chunk of them at a time."""
    from rlhf_core.models.layers.chunked_head import CHUNK_BYTES, KEEP_BYTES

    logits = 4 * vocabulary * longest * int(trainer.micro_batch_size)
    if not getattr(trainer, "chunked_head", True):
        return 2 * logits
    return 2 * min(logits, CHUNK_BYTES) + (logits if logits <= KEEP_BYTES else 0)  # probabilities that are kept


@dataclass(frozen=True)
class Lengths:
    """Tokens per row, of the rows that were tokenized. Example: ``Lengths(mean=12.4, longest=20, prompt=12.4)``"""

    mean: float
    longest: int
    prompt: float
    """Mean of the prompts alone."""


@dataclass(frozen=True)
class DryRun:
    model: ModelFacts
    rows: Rows | None
    """None where the rows are at the hub, or the trainer reads them in a way of its own."""
    lengths: Lengths | None
    steps: int | None
    memory: Mapping[str, int]


def look_at(ctx: BuildContext) -> DryRun:
    """Check models and data of a planned run, and count what it would do."""
    config = ctx.config
    model = inspect_model(config.model, generates=trains_policy(config))
    _check_other_models(config)
    rows = read_all(config, ctx)
    lengths = _lengths(config, model, rows) if rows is not None else None
    return DryRun(model, rows, lengths, _steps(config, rows), estimate_memory(config, model, _longest(config, lengths)))


def _check_other_models(config: RunConfig) -> None:
    """Models that rewards and judges name."""
    for kind, part in config.components():
        if kind in ("reward", "judge"):
            settings = part.model_dump(mode="json", exclude={"pairs", "dataset"})
            for path in model_paths(settings):
                check_hub_model(path, f"{kind} '{part.name}'")


def _steps(config: RunConfig, rows: Rows | None) -> int | None:
    """Steps of the run; of an offline one as many as its rows make, if they are known."""
    trainer: Any = config.trainer
    if config.samples_itself:
        return int(trainer.steps)
    if rows is None or not hasattr(trainer, "epochs"):
        return getattr(trainer, "max_steps", None)
    draws = max(1, round(len(rows.train) * trainer.epochs))
    updates = math.ceil(draws / trainer.batch_size)
    return min(updates, trainer.max_steps or updates)


def _longest(config: RunConfig, lengths: Lengths | None) -> int:
    """Tokens whose log-probabilities one sequence needs."""
    trainer: Any = config.trainer
    if config.samples_itself:
        return int(trainer.sampling.max_tokens)
    limit = int(getattr(trainer, "max_length", 1024))
    return limit if lengths is None else min(limit, lengths.longest)


def _lengths(config: RunConfig, model: ModelFacts, rows: Rows) -> Lengths:
    """Tokenize a part of the rows; prompts that do not fit are refused as the run would refuse them."""
    from rlhf_core.data.datasets import admit
    from rlhf_core.data.order import PromptOrder
    from rlhf_plugin_preflight.memory.sizes import count_tokens, spread

    trainer: Any = config.trainer
    samples = rows.what == "prompts"
    if samples:
        prompts: Any = rows.train
        PromptOrder(prompts, rows.weights, config.seed, False).require(trainer.prompts_per_step)
    tokenized = spread(rows)
    sizes = count_tokens(config, model.tokenizer, tokenized)
    if samples:
        tokens_of = {row.id: range(size.prompt) for row, size in zip(tokenized, sizes)}
        admit(
            tokenized,
            lambda row: tuple(tokens_of[row.id]),
            config.dataset,
            context=model.context,
            max_tokens=trainer.sampling.max_tokens,
        )
    totals = [max(1, len(size.replies)) * size.prompt + sum(size.replies) for size in sizes]
    return Lengths(sum(totals) / len(totals), max(totals), sum(size.prompt for size in sizes) / len(sizes))
