"""A control: episodes whose results of tools are trained on as if the policy had written them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch

from rlhf_core.config import BuildContext
from rlhf_core.rollouts import Rollout
from rlhf_plugin_episodes.agent import MultiTurnAgent
from rlhf_plugin_episodes.agent_config import MultiTurnConfig

ENTRY = "[rlhf.agent]\nunmasked = rlhf_studies.lookup_grpo.unmasked:UnmaskedConfig\n"


class UnmaskedConfig(MultiTurnConfig):
    """As `multi_turn`, without the mask."""

    name: str = "unmasked"
    component: ClassVar[str] = "rlhf_studies.lookup_grpo.unmasked:UnmaskedAgent.from_config"


class UnmaskedAgent(MultiTurnAgent):
    """Gives what was read the policy's own logprobs, and no mask."""

    policy: Any

    @classmethod
    def from_config(cls, config: MultiTurnConfig, ctx: BuildContext) -> UnmaskedAgent:
        """The agent of a run; it keeps the policy, which is not trained while it plays."""
        agent = super().from_config(config, ctx)
        assert isinstance(agent, cls)
        agent.policy = ctx.policy
        return agent

    def play(self, *args: Any, **options: Any) -> list[Rollout]:
        return self._unmasked(super().play(*args, **options))

    @torch.inference_mode()
    def _unmasked(self, rollouts: Sequence[Rollout]) -> list[Rollout]:
        changed: list[Rollout] = []
        device = next(self.policy.model.parameters()).device
        for rollout in rollouts:
            start = len(rollout.prompt_ids)
            ids = torch.tensor([(*rollout.prompt_ids, *rollout.completion_ids)], device=device)
            logits = self.policy.model(input_ids=ids).logits[0, start - 1 : -1].float()
            chosen_logprobs = logits.log_softmax(-1).gather(1, ids[0, start:, None])[:, 0].cpu().numpy()
            written = np.ones(len(chosen_logprobs), bool) if rollout.mask_T is None else np.asarray(rollout.mask_T)
            logprobs = np.where(written, rollout.logprobs_T, chosen_logprobs).astype(np.float32)
            changed.append(replace(rollout, logprobs_T=logprobs, mask_T=None, turns=(), segments=()))
        return changed
