"""The on-policy loop: prompts, rollouts, scores, advantages, update."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlhf_core._surface import surface

if TYPE_CHECKING:
    from rlhf_core.rl.config import OnlineTrainerConfig as OnlineTrainerConfig
    from rlhf_core.rl.config import RolloutTrainerConfig as RolloutTrainerConfig
    from rlhf_core.rl.settings import KLSettings as KLSettings
    from rlhf_core.rl.trainer import RolloutTrainer as RolloutTrainer

__getattr__, __dir__ = surface(__name__)
