"""Checks of the episodes that agents return: budget, masks, logprobs and turns agree with one another."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from rlhf_core.plugins.contracts import contract_error
from rlhf_core.types.rollouts import Rollout
from rlhf_core.types.turns import POLICY


def check_episode(rollout: Rollout, max_tokens: int, label: str) -> None:
    """Refuse an episode that is longer than asked for, or whose mask, logprobs and turns disagree.

    Args:
        rollout: its shapes have been checked (``MalformedRollout``).
        max_tokens: of the whole episode, results of tools included.
        label: names the agent.

    Raises:
        PluginError: names the episode, what is wrong, and what was expected.
    """
    name = f"{rollout.prompt_id}#{rollout.group_index}"
    count = len(rollout.completion_ids)
    if not 0 < count <= max_tokens:
        raise contract_error(
            label,
            f"{count} tokens for {name}",
            f"1 to {max_tokens}, results of tools included: sampling.max_tokens is the budget of an episode",
        )
    mask_T = np.ones(count, bool) if rollout.mask_T is None else np.asarray(rollout.mask_T)
    if mask_T.dtype != np.bool_:
        raise contract_error(label, f"a mask of {mask_T.dtype} for {name}", "booleans")
    read_T = ~mask_T
    if (bad := np.flatnonzero(read_T & (np.asarray(rollout.logprobs_T) != 0))).size:
        value = float(rollout.logprobs_T[bad[0]])
        raise contract_error(
            label, f"logprob {value:g} at token {bad[0]} of {name}, which is masked", "0.0 where mask_T is False"
        )
    if not mask_T.any():
        raise contract_error(label, f"{name} without a token of the policy", "mask_T True somewhere")
    if read_T.any() and not rollout.turns:
        raise contract_error(
            label,
            f"masked tokens in {name}, but no turns",
            "Rollout.turns, which say who wrote what: a reward must see nothing that the policy did not write",
        )
    for turn in rollout.turns:
        _check_turn(turn.role, turn.span, turn.message, mask_T, name, label)
    for segment in rollout.segments:
        start, end = segment.span
        if segment.role != POLICY and segment.prompt_ids is None and mask_T[start:end].any():
            raise contract_error(label, f"a segment of role '{segment.role}' with policy tokens in {name}", "a mask")


def _check_turn(role: str, span: tuple[int, int], message: Any, mask_T: Any, name: str, label: str) -> None:
    """A turn's message is JSON; none but the policy's holds tokens that count."""
    start, end = span
    if role != POLICY and mask_T[start:end].any():
        raise contract_error(
            label,
            f"a turn of role '{role}' in {name}, tokens {start} to {end}, that mask_T says the policy chose",
            f"mask_T False outside of turns of role '{POLICY}'",
        )
    try:
        json.dumps(message, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise contract_error(label, f"a message in {name} that is not JSON: {error}", "JSON values only") from error
