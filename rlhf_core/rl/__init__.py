"""The on-policy loop: prompts, rollouts, scores, advantages, update."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlhf_core._surface import surface

if TYPE_CHECKING:
    from rlhf_core.rl.advantages import measure_kl as measure_kl
    from rlhf_core.rl.build import RolloutParts as RolloutParts
    from rlhf_core.rl.build import TrainedModule as TrainedModule
    from rlhf_core.rl.build import build_loss as build_loss
    from rlhf_core.rl.build import build_rollout_parts as build_rollout_parts
    from rlhf_core.rl.config import KLSettings as KLSettings
    from rlhf_core.rl.config import OnlineTrainerConfig as OnlineTrainerConfig
    from rlhf_core.rl.config import ReferenceSettings as ReferenceSettings
    from rlhf_core.rl.config import RolloutTrainerConfig as RolloutTrainerConfig
    from rlhf_core.rl.inputs import load_online_inputs as load_online_inputs
    from rlhf_core.rl.preflight import check_prompt_shares as check_prompt_shares
    from rlhf_core.rl.preflight import check_reference as check_reference
    from rlhf_core.rl.summary import summarize_online_run as summarize_online_run

__getattr__, __dir__ = surface(__name__)
