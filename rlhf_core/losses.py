"""Plain functions on tensors and figures; the same code the trainers run. Importing it does not import torch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlhf_core.runs.comparison import WinRate as WinRate
    from rlhf_core.runs.comparison import win_rate as win_rate
    from rlhf_core.runs.rank_correlation import spearman as spearman
    from rlhf_core.runs.shares import percentile_tails as percentile_tails
    from rlhf_core.runs.shares import t_quantile as t_quantile
    from rlhf_core.runs.shares import wilson as wilson
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

_HOMES = {
    "groups": ("centred", "compute_group_normalized_rewards", "group_normalize", "rounding", "spread"),
    "importance": ("bounded_ratio",),
    "kl": ("kl_value",),
    "preference": ("compute_per_instance_dpo_loss", "dpo_loss"),
    "rank_correlation": ("spearman",),
    "reduce": ("masked_mean", "masked_normalize", "masked_sum"),
    "responses": ("compute_entropy", "get_response_log_probs", "tokenize_prompt_and_output"),
    "shares": ("percentile_tails", "t_quantile", "wilson"),
    "steps": ("grpo_microbatch_train_step", "sft_microbatch_train_step"),
    "surrogate": (
        "clipped_surrogate",
        "compute_grpo_clip_loss",
        "compute_naive_policy_gradient_loss",
        "compute_policy_gradient_loss",
    ),
    "comparison": ("WinRate", "win_rate"),
}
_WHERE = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted(_WHERE)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    home = _WHERE.get(name)
    if home is None:
        raise AttributeError(f"rlhf_core.training.functional has no '{name}'")
    return getattr(import_module(f"rlhf_core.training.functional.{home}"), name)
