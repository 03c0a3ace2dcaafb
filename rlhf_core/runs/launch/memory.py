"""What a training run holds in memory, as far as it follows from the configuration and the shapes of the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlhf_core.config.run import RunConfig
    from rlhf_core.models.inspect import ModelFacts

NOT_COUNTED = "activations, reward models, critic, the sampler's cache, libraries"


def estimate_memory(config: RunConfig, model: ModelFacts, longest: int) -> dict[str, int]:
    """Bytes of each part in one process that holds the whole model; :data:`NOT_COUNTED` comes on top.

    Args:
        config: of the run.
        model: the policy.
        longest: tokens of the longest sequence whose log-probabilities are computed.
    """
    trainer: Any = config.trainer
    return {
        "weights": model.weight_bytes,
        "gradients": model.trainable_bytes,
        "optimizer": 2 * model.trainable_bytes,  # AdamW keeps two numbers in the precision of the parameter
        "reference": model.weight_bytes if config.keeps_copy else 0,
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


def total(parts: Mapping[str, int]) -> int:
    """Bytes of all parts."""
    return sum(parts.values())


def readable(count: float) -> str:
    """Bytes for people.

    Example:
        >>> readable(5_494_400)
        '5.5 MB'
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
