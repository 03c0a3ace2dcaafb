from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from rlhf_studies.common import smoke
from rlhf_study.config import StudyConfig


class PocketRecipeConfig(StudyConfig):
    """How sure is the quickstart's win rate? ``rlhf train --algo grpo --reward ensemble`` over several seeds, as it is
    and with some settings changed.
    """

    name: str = "pocket_recipe"
    component: ClassVar[str] = "rlhf_studies.pocket_recipe.run:PocketRecipe"
    smoke: ClassVar[Mapping[str, Any]] = {
        "variants": ("trainer.kl.coefficient=0",),
        "train": {**smoke.ENSEMBLE, "trainer": {**smoke.ONLINE["trainer"], "steps": 1}},
    }

    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    variants: tuple[str, ...] = ("trainer.kl.coefficient=0",)
    """What is changed, besides nothing: each as ``a.b=c``, several joined by commas."""
    train: Mapping[str, Any] = {}
    """Further settings of every run."""
