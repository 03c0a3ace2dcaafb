"""An episode in one context or in several is one row of every loss: the same value and the same gradient."""

from collections.abc import Sequence, Set
from typing import Any

import numpy as np
import pytest
import torch

from rlhf_core.distributed.group import LocalStrategy
from rlhf_core.training.forward import ForwardOptions
from rlhf_core.training.micro_batches import NoGradForward, positions
from rlhf_core.training.policy_module import LOGPROBS, Measure, PolicyModule, TokenMeasures
from rlhf_core.training.rollout_batch import TrainingSample
from rlhf_core.types.messages import Segment
from rlhf_core.types.rollouts import FinishReason, Rollout

from .cuts import REDUCTIONS, cut, episodes, policy, rows


def check(table: list[dict[str, Any]]) -> None:
    compared = [row for row in table if "reduction" in row]
    assert len(compared) == len(REDUCTIONS) * len({row["loss"] for row in compared}) > 0
    for row in compared:
        assert row["gradient_norm"] > 1e-4, row
        assert row["gradient_gap"] < 1e-5, row
        assert row["loss_gap"] < 1e-5, row


def test_losses_by_token_and_by_sequence_see_one_episode_cut_or_whole() -> None:
    check(list(rows(only=("grpo_clip", "gspo"))))


@pytest.mark.slow
def test_every_loss_and_reduction_sees_one_episode_cut_or_whole() -> None:
    table = list(rows())
    check(table)
    assert len(table) >= 45
    refused = {row["loss"] for row in table if "refused" in row}
    assert {"sigmoid", "kto", "cross_entropy"} <= refused


class Critic(torch.nn.Module):
    """Values from the policy's hidden states."""

    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.Linear(32, 1)

    def forward(self, prompts: object, completions: object, hidden_NH: torch.Tensor) -> torch.Tensor:
        return self.head(hidden_NH)[:, 0]


def measure(module: PolicyModule, samples: Sequence[TrainingSample], want: Set[Measure]) -> list[TokenMeasures]:
    return NoGradForward(LocalStrategy(), module).rows(samples, 2, lambda m, micro: m.measure(micro, want))


def test_values_and_logprobs_are_those_of_the_whole_episode() -> None:
    whole = episodes()
    pieces = [cut(sample) for sample in whole]
    module = PolicyModule(policy(), 1.0, ForwardOptions(), Critic(), on_policy_trunk=True)
    measured = [measure(module, part, {"logprobs", "values"}) for part in (whole, pieces)]
    for one, two in zip(*measured, strict=True):
        np.testing.assert_allclose(one.values_T1, two.values_T1, atol=1e-5)
        np.testing.assert_allclose(one.logprobs_T, two.logprobs_T, atol=1e-5)
    with torch.no_grad():
        values = [module(part).values_BT for part in (whole, pieces)]
    torch.testing.assert_close(*values, atol=1e-5, rtol=0)


def test_a_rewritten_context_is_what_the_forward_reads_and_what_it_costs() -> None:
    segments = (Segment((0, 2), "assistant"), Segment((2, 5), "assistant", (9, 9, 9)))
    rollout = Rollout(
        "p", 0, (1, 2), (3, 4, 5, 6, 7), np.full(5, -1, np.float32), 0, FinishReason.EOS, "", 1, segments=segments
    )
    sample = TrainingSample.from_rollout(rollout, advantage=1.0)
    assert sample.pieces == [((1, 2), (3, 4)), ((9, 9, 9), (5, 6, 7))]
    assert positions([sample], ForwardOptions(share_prefix=False)) == 10
    module = PolicyModule(policy(), 1.0, ForwardOptions())
    apart = [
        TrainingSample(str(n), prompt, ids, np.ones(len(ids), bool), np.zeros(len(ids), np.float32))
        for n, (prompt, ids) in enumerate(sample.pieces)
    ]
    (whole,), parts = (measure(module, part, LOGPROBS) for part in ([sample], apart))
    np.testing.assert_allclose(whole.logprobs_T, np.concatenate([part.logprobs_T for part in parts]), atol=1e-6)
