"""What a course's test suite calls, onto ``rlhf_plugin_grpo.functional``: nothing but names."""

from __future__ import annotations

from typing import Any

from rlhf_plugin_grpo import functional as F


def run_tokenize_prompt_and_output(prompt_strs: list[str], output_strs: list[str], tokenizer: Any) -> Any:
    return F.tokenize_prompt_and_output(prompt_strs, output_strs, tokenizer)


def run_get_response_log_probs(model: Any, input_ids: Any, labels: Any, return_token_entropy: bool) -> Any:
    return F.get_response_log_probs(model, input_ids, labels, return_token_entropy)


def run_compute_entropy(logits: Any) -> Any:
    return F.compute_entropy(logits)


def run_masked_mean(tensor: Any, mask: Any, dim: int | None = None) -> Any:
    return F.masked_mean(tensor, mask, dim)


def run_masked_normalize(tensor: Any, mask: Any, dim: int | None = None, normalize_constant: float = 1.0) -> Any:
    return F.masked_normalize(tensor, mask, dim=dim, constant_normalizer=normalize_constant)


def run_compute_group_normalized_rewards(
    reward_fn: Any,
    rollout_responses: Any,
    repeated_ground_truths: Any,
    group_size: int,
    advantage_eps: float,
    normalize_by_std: bool,
) -> Any:
    return F.compute_group_normalized_rewards(
        reward_fn, rollout_responses, repeated_ground_truths, group_size, advantage_eps, normalize_by_std
    )


def run_compute_naive_policy_gradient_loss(raw_rewards_or_advantages: Any, policy_log_probs: Any) -> Any:
    return F.compute_naive_policy_gradient_loss(raw_rewards_or_advantages, policy_log_probs)


def run_compute_grpo_clip_loss(advantages: Any, policy_log_probs: Any, old_log_probs: Any, cliprange: float) -> Any:
    return F.compute_grpo_clip_loss(advantages, policy_log_probs, old_log_probs, cliprange)


def run_compute_policy_gradient_loss(**arguments: Any) -> Any:
    return F.compute_policy_gradient_loss(**arguments)


def run_grpo_microbatch_train_step(**arguments: Any) -> Any:
    return F.grpo_microbatch_train_step(**arguments)


def run_sft_microbatch_train_step(
    policy_log_probs: Any, response_mask: Any, gradient_accumulation_steps: int, normalize_constant: float = 1.0
) -> Any:
    return F.sft_microbatch_train_step(policy_log_probs, response_mask, gradient_accumulation_steps, normalize_constant)


def run_compute_per_instance_dpo_loss(
    lm: Any, lm_ref: Any, tokenizer: Any, beta: float, prompt: str, response_chosen: str, response_rejected: str
) -> Any:
    return F.compute_per_instance_dpo_loss(lm, lm_ref, tokenizer, beta, prompt, response_chosen, response_rejected)
