"""Training: what both loops share, and offline trainers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlhf_core._surface import surface

if TYPE_CHECKING:
    from rlhf_core.training.config import LoopSettings as LoopSettings
    from rlhf_core.training.config import OptimizerSettings as OptimizerSettings
    from rlhf_core.training.config import SamplingSettings as SamplingSettings
    from rlhf_core.training.forward import completion_logprobs as completion_logprobs
    from rlhf_core.training.learner import Learner as Learner
    from rlhf_core.training.loop import load_trained_policy as load_trained_policy
    from rlhf_core.training.loop import run_steps as run_steps
    from rlhf_core.training.micro_batches import NoGradForward as NoGradForward
    from rlhf_core.training.offline.config import OfflineTrainerConfig as OfflineTrainerConfig
    from rlhf_core.training.offline.config import PolicyTrainerConfig as PolicyTrainerConfig
    from rlhf_core.training.offline.trainer import OfflineTrainer as OfflineTrainer
    from rlhf_core.training.policy_module import PolicyModule as PolicyModule
    from rlhf_core.training.rollout_batch import TrainingSample as TrainingSample

__getattr__, __dir__ = surface(__name__)
