"""A small real policy for checks that sample from one or train one."""

from __future__ import annotations

import functools
from typing import Any

from rlhf_core.config import BuildContext
from rlhf_testing.samples import make_context


@functools.cache
def pocket_policy() -> Any:
    """The built-in model, loaded once in a process."""
    from rlhf_core.models import ModelConfig, load_policy

    return load_policy(ModelConfig())


def policy_context(**fields: Any) -> BuildContext:
    """A context outside any run whose policy is the built-in model.

    Example:
        check_rollout(config, policy_context(seed=3))
    """
    return make_context(policy=pocket_policy(), **fields)
