"""Tensor functions for a loop of your own: from texts to log-probabilities, the losses of courses, and their steps."""

from rlhf_plugin_grpo.functional.group_rewards import compute_group_normalized_rewards
from rlhf_plugin_grpo.functional.masked import masked_mean, masked_normalize
from rlhf_plugin_grpo.functional.preference import compute_per_instance_dpo_loss, dpo_loss
from rlhf_plugin_grpo.functional.responses import compute_entropy, get_response_log_probs, tokenize_prompt_and_output
from rlhf_plugin_grpo.functional.steps import grpo_microbatch_train_step, sft_microbatch_train_step
from rlhf_plugin_grpo.functional.surrogate import (
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
