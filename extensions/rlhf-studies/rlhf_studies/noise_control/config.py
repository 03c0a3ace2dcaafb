from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from rlhf_studies.common import smoke
from rlhf_study.config import StudyConfig

Control = Literal["verifier", "shuffled", "random"]


class NoiseControlConfig(StudyConfig):
    """What does GRPO do to a policy whose reward says nothing? ``pocket/arithmetic`` with the numeric verifier, its
    verdicts shuffled, and random ones; by the defaults, and with some settings changed.
    """

    name: str = "noise_control"
    component: ClassVar[str] = "rlhf_studies.noise_control.run:NoiseControl"
    smoke: ClassVar[Mapping[str, Any]] = {
        "rewards": ("random",),
        "variants": (),
        "steps": 1,
        "train": smoke.ONLINE,
    }

    seeds: tuple[int, ...] = (0, 1)
    rewards: tuple[Control, ...] = ("verifier", "shuffled", "random")
    steps: int = Field(default=40, ge=1)
    variants: tuple[str, ...] = (
        "trainer.optimizer.learning_rate=5e-4,trainer.kl.coefficient=0",
        "trainer.optimizer.learning_rate=5e-4,trainer.kl.coefficient=0,advantage.scale=none",
        "trainer.kl.coefficient=0",
    )
    """What is changed, besides nothing: each as ``a.b=c``, several joined by commas."""
    rate: float = Field(default=0.12, gt=0, lt=1)
    """Share of random verdicts that are 1.0: about that of right answers before training."""
    train: Mapping[str, Any] = {}
    """Further settings of every run."""
