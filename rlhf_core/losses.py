"""Losses and advantages: what they are given, what they return, and the maths that the trainers run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlhf_core._surface import surface

if TYPE_CHECKING:
    from rlhf_core.plugins.protocols import Advantage as Advantage
    from rlhf_core.plugins.protocols import CriticAdvantage as CriticAdvantage
    from rlhf_core.plugins.protocols import Loss as Loss
    from rlhf_core.training.functional.groups import centred as centred
    from rlhf_core.training.functional.groups import (
        compute_group_normalized_rewards as compute_group_normalized_rewards,
    )
    from rlhf_core.training.functional.groups import group_normalize as group_normalize
    from rlhf_core.training.functional.groups import rounding as rounding
    from rlhf_core.training.functional.groups import spread as spread
    from rlhf_core.training.functional.importance import bounded_ratio as bounded_ratio
    from rlhf_core.training.functional.kl import kl_value as kl_value
    from rlhf_core.training.functional.preference import compute_per_instance_dpo_loss as compute_per_instance_dpo_loss
    from rlhf_core.training.functional.preference import dpo_loss as dpo_loss
    from rlhf_core.training.functional.reduce import masked_mean as masked_mean
    from rlhf_core.training.functional.reduce import masked_normalize as masked_normalize
    from rlhf_core.training.functional.reduce import masked_sum as masked_sum
    from rlhf_core.training.functional.responses import compute_entropy as compute_entropy
    from rlhf_core.training.functional.responses import get_response_log_probs as get_response_log_probs
    from rlhf_core.training.functional.responses import tokenize_prompt_and_output as tokenize_prompt_and_output
    from rlhf_core.training.functional.steps import grpo_microbatch_train_step as grpo_microbatch_train_step
    from rlhf_core.training.functional.steps import sft_microbatch_train_step as sft_microbatch_train_step
    from rlhf_core.training.functional.surrogate import clipped_surrogate as clipped_surrogate
    from rlhf_core.training.functional.surrogate import compute_grpo_clip_loss as compute_grpo_clip_loss
    from rlhf_core.training.functional.surrogate import (
        compute_naive_policy_gradient_loss as compute_naive_policy_gradient_loss,
    )
    from rlhf_core.training.functional.surrogate import compute_policy_gradient_loss as compute_policy_gradient_loss
    from rlhf_core.types.batches import LossOutput as LossOutput
    from rlhf_core.types.batches import PairBatch as PairBatch
    from rlhf_core.types.batches import TokenBatch as TokenBatch
    from rlhf_core.types.batches import UnpairedBatch as UnpairedBatch
    from rlhf_core.types.rollouts import Advantages as Advantages
    from rlhf_core.types.rollouts import TokenValues as TokenValues

__getattr__, __dir__ = surface(__name__)
