"""What the entry points name; importing this never imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from rlhf_core.config import ComponentConfig
from rlhf_core.training import OptimizerSettings, PolicyTrainerConfig


class SftConfig(PolicyTrainerConfig):
    """Imitate demonstrations: next-token cross-entropy on the completion."""

    name: str = "sft"
    component: ClassVar[str] = "rlhf_plugin_sft.task:build_trainer"
    feeds: ClassVar[str | None] = "labels"
    companions: ClassVar[Mapping[str, Any]] = {"dataset": "pocket/assistant", "loss": "cross_entropy"}
    recipes: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "pocket": {"trainer": {"name": "sft", "optimizer": {"learning_rate": 2e-4}}},
        "pocket-tools": {"trainer": {"name": "sft", "optimizer": {"learning_rate": 1e-3}}},
    }
    """At the rate of larger models the pocket model's held-out loss hardly moves in an epoch."""
    optimizer: OptimizerSettings = OptimizerSettings(learning_rate=2e-5, warmup_steps=10, schedule="cosine")

    learn: Literal["last", "all"] = "last"
    """Of a conversation with several answers: learn only the last, or every one in the same forward. What users say,
    system prompts, turns with ``weight: 0`` and the chat template's marks are never learned."""


class CrossEntropyConfig(ComponentConfig):
    """``-log p(token)`` on completion tokens."""

    name: str = "cross_entropy"
    component: ClassVar[str] = "rlhf_plugin_sft.loss:CrossEntropy"
    consumes: ClassVar[str | None] = "labels"
