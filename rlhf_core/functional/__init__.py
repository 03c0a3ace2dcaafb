"""Plain tensor functions; the same code the trainers run."""

from rlhf_core.functional.groups import compute_group_normalized_rewards
from rlhf_core.functional.preference import compute_per_instance_dpo_loss, dpo_loss
from rlhf_core.functional.reduce import masked_mean, masked_normalize
from rlhf_core.functional.responses import compute_entropy, get_response_log_probs, tokenize_prompt_and_output
from rlhf_core.functional.steps import grpo_microbatch_train_step, sft_microbatch_train_step
from rlhf_core.functional.surrogate import (
    compute_grpo_clip_loss,
    compute_naive_policy_gradient_loss,
    compute_policy_gradient_loss,
)

__all__ = [
    "compute_entropy",
    "compute_group_normalized_rewards",
    "compute_grpo_clip_loss",
    "compute_naive_policy_gradient_loss",
    "compute_per_instance_dpo_loss",
    "compute_policy_gradient_loss",
    "dpo_loss",
    "get_response_log_probs",
    "grpo_microbatch_train_step",
    "masked_mean",
    "masked_normalize",
    "sft_microbatch_train_step",
    "tokenize_prompt_and_output",
]
