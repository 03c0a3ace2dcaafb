"""The single-turn agent asks for every completion of every group, with its own seed, in order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlhf_core.rl.single_turn import SingleTurnConfig
from rlhf_core.types.rollouts import FinishReason, Prompt, PromptGroup, Rollout, RolloutRequest, SamplingParams


class Echo:
    """Answers with the seed."""

    def __init__(self) -> None:
        self.calls: list[Sequence[RolloutRequest]] = []

    def generate(
        self, requests: Sequence[RolloutRequest], sampling: SamplingParams, policy_version: int
    ) -> list[Rollout]:
        self.calls.append(requests)
        return [
            Rollout(
                r.prompt_id,
                r.group_index,
                r.prompt_ids,
                (r.seed,),
                np.zeros(1, np.float32),
                policy_version,
                FinishReason.EOS,
                str(r.seed),
                r.seed,
            )
            for r in requests
        ]


def test_one_call_groups_in_order() -> None:
    groups = [PromptGroup(Prompt(f"p{i}", ({"role": "user", "content": "x"},)), (i, i), 3) for i in range(2)]
    engine = Echo()
    agent = SingleTurnConfig().build(None)  # type: ignore[arg-type]
    rollouts = agent.play(groups, [[1, 2, 3], [4, 5, 6]], engine, SamplingParams(), 9)
    assert len(engine.calls) == 1
    assert [(r.prompt_id, r.group_index, r.prompt_ids, r.seed) for r in rollouts] == [
        (f"p{i}", g, (i, i), 3 * i + g + 1) for i in range(2) for g in range(3)
    ]
    assert {r.policy_version for r in rollouts} == {9}
