"""The head runs on tokens that the policy chose and on no others, which changes no number that counts."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rlhf_core.training import forward
from rlhf_core.training.forward import ALL, PLAIN, ForwardOptions, completion_logprobs
from rlhf_core.training.rollout_batch import head_masks, prompts_and_completions

from .cuts import cut, episodes, policy


@pytest.fixture
def rows_of_head(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows that each call of the chunked head was given."""
    seen: list[int] = []
    head = forward.head_logprobs

    def counted(hidden_NH: torch.Tensor, *rest: Any, **options: Any) -> Any:
        seen.append(len(hidden_NH))
        return head(hidden_NH, *rest, **options)

    monkeypatch.setattr(forward, "head_logprobs", counted)
    return seen


def gradient(model: torch.nn.Module, values_N: torch.Tensor) -> torch.Tensor:
    weights_N = torch.cos(torch.arange(len(values_N)))
    return torch.cat([g.flatten() for g in torch.autograd.grad((values_N * weights_N).sum(), [*model.parameters()])])


@pytest.mark.parametrize("options", [ALL, PLAIN, ForwardOptions(packing=False)])
def test_what_counts_is_the_same_with_and_without_the_other_rows(options: ForwardOptions) -> None:
    samples, model = episodes(), policy()
    samples = [*samples[:2], cut(samples[2]), *samples[3:]]
    pieces = prompts_and_completions(samples)
    masks = head_masks(samples)
    assert masks is not None
    arguments = {"entropy": True, "temperature": 0.7, **options.as_arguments}
    every: Any = completion_logprobs(model, *pieces, **arguments)
    some: Any = completion_logprobs(model, *pieces, masks=masks, **arguments)
    assert torch.equal(every.mask_BT, some.mask_BT)
    chosen_BT = torch.zeros_like(every.mask_BT)
    for row, mask in zip(chosen_BT, masks):
        assert mask is not None
        row[: len(mask)] = torch.tensor(mask)
    for name in ("logprobs_BT", "entropy_BT"):
        a, b = getattr(every, name), getattr(some, name)
        torch.testing.assert_close(a[chosen_BT], b[chosen_BT], atol=1e-6, rtol=1e-6)  # a product of fewer rows
        assert not b[~chosen_BT].any()
        assert a[~chosen_BT & every.mask_BT].any()
    gradients = [gradient(model, torch.cat([o.logprobs_BT[chosen_BT], o.entropy_BT[chosen_BT]])) for o in (every, some)]
    torch.testing.assert_close(*gradients, atol=1e-6, rtol=1e-5)
