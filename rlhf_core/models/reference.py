"""The reference policy: a frozen copy, or with LoRA the adapter switched off."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any


class Reference:
    """The policy as it was before training.

    Args:
        model: peft-wrapped (no copy is made) or a frozen copy.
    """

    def __init__(self, model: Any, adapter: bool) -> None:
        self.model, self.adapter = model, adapter

    @classmethod
    def of(cls, policy: Any) -> Reference:
        """Make the reference of a policy that has not been trained yet."""
        if hasattr(policy, "disable_adapter"):
            return cls(policy, adapter=True)
        frozen = copy.deepcopy(policy).eval().requires_grad_(False)
        return cls(frozen, adapter=False)

    @contextlib.contextmanager
    def active(self) -> Iterator[Any]:
        """Yield the model that computes reference logprobs, without dropout; the policy is as it was afterwards.

        Example:
            with reference.active() as model, torch.no_grad():
                ref_BT = completion_logprobs(model, prompts, completions).logprobs_BT
        """
        from rlhf_core.policy.structure import quiet

        with quiet(self.model), self.model.disable_adapter() if self.adapter else contextlib.nullcontext():
            yield self.model
