"""How often completions repeat each other; what a fixed seed or a collapsed policy shows first."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from rlhf_core.types import Rollout

IMPROBABLE = -12.0
"""Natural log of the probability under which equal completions of one prompt are no coincidence."""


def repeat_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Shares of completions, or of prompts, that repeat.

    Returns:
        ``identical_fraction``: prompts all of whose completions are the same, of those that have several.
        ``improbable_twins``: completions that equal others of their prompt so often that independent draws from the
        behaviour policy would do it with a probability below ``exp(IMPROBABLE)``.
        ``commonest_fraction``: the commonest completion, whatever its prompt.
    """
    groups: dict[str, list[Rollout]] = {}
    for rollout in rollouts:
        groups.setdefault(rollout.prompt_id, []).append(rollout)
    several = [g for g in groups.values() if len(g) > 1]
    equal = sum(len({r.completion_ids for r in g}) == 1 for g in several)
    twins = sum(_improbable_twins(g) for g in several)
    commonest = max(Counter(r.completion_ids for r in rollouts).values(), default=0)
    return {"identical_fraction": equal / max(1, len(several)), "improbable_twins": twins / max(1, len(rollouts)),
            "commonest_fraction": commonest / max(1, len(rollouts))}


def _improbable_twins(group: Sequence[Rollout]) -> int:
    """k copies among n draws: the first is free, so about ``C(n - 1, k - 1) p^(k - 1)``."""
    count = Counter(r.completion_ids for r in group)
    logprobs = {r.completion_ids: _logprob(r) for r in group}
    return sum(k for ids, k in count.items() if k > 1
               and math.log(math.comb(len(group) - 1, k - 1)) + (k - 1) * logprobs[ids] < IMPROBABLE)


def _logprob(rollout: Rollout) -> float:
    """Of what the policy chose; tool output is the same for everybody."""
    chosen = rollout.logprobs_T if rollout.mask_T is None else rollout.logprobs_T[rollout.mask_T]
    return float(chosen.sum())
