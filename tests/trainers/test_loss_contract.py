"""A loss whose values do not fit its batch is named, whatever the trainer, before anything is learned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
import torch

from rlhf_core.distributed.group import LocalStrategy
from rlhf_core.plugins.loss_contract import CheckedLoss
from rlhf_core.rl.build import policy_terms
from rlhf_core.rl.config import OnlineTrainerConfig
from rlhf_core.training.learner import Learner
from rlhf_core.types.batches import LossOutput, PairBatch, TokenBatch, UnpairedBatch
from rlhf_core.types.errors import PluginError

GRID = torch.ones(3, 3, dtype=torch.bool)
"""As many sequences as tokens: whatever broadcasts, does so without an error."""


class Item:
    name, tokens = "row", 3


class Module(torch.nn.Module):
    """Makes a batch of one kind from three samples."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.weight, self.kind = torch.nn.Parameter(torch.zeros(3, 3)), kind

    def forward(self, samples: Any) -> Any:
        row = self.weight.sum(-1)
        if self.kind == "token":
            old = self.weight.detach() + 0.1
            return TokenBatch(self.weight, GRID, torch.ones(3, 3), old, old, old, self.weight)
        return PairBatch(row, -row) if self.kind == "pairs" else UnpairedBatch(row, GRID[0])


def values(batch: Any) -> torch.Tensor:
    """The right answer of each kind."""
    return -(getattr(batch, "logprobs_BT", None) if hasattr(batch, "mask_BT") else batch_rows(batch))


def batch_rows(batch: Any) -> torch.Tensor:
    return batch.chosen_B if isinstance(batch, PairBatch) else batch.logprobs_B


Change = Callable[[torch.Tensor], Any]
SHAPES: list[tuple[str, Change, str]] = [
    ("token", lambda v: LossOutput(v.mean(-1)), r"shape \(3,\)[\s\S]*\(3, 3\)"),
    ("token", lambda v: LossOutput(v.mean(-1, keepdim=True)), r"shape \(3, 1\)"),
    ("token", lambda v: LossOutput(v.mean()), r"shape \(\)"),
    ("token", lambda v: LossOutput(v.unsqueeze(0)), r"shape \(1, 3, 3\)"),
    ("pairs", lambda v: LossOutput(v.mean()), r"shape \(\)[\s\S]*\(3,\)"),
    ("pairs", lambda v: LossOutput(v[:1]), r"shape \(1,\)"),
    ("pairs", lambda v: LossOutput(v.unsqueeze(-1)), r"shape \(3, 1\)"),
    ("unpaired", lambda v: LossOutput(torch.cat([v, v])), r"shape \(6,\)"),
    ("token", lambda v: v, "a Tensor"),
    ("token", lambda v: LossOutput(v.detach()), "without a gradient"),
    ("token", lambda v: LossOutput(v, {"gap": (v.detach(), 9.0)}), r"metric 'gap'[\s\S]*\(3, 3\)"),
    ("token", lambda v: LossOutput(v, {"gap": v.detach().mean()}), "metric 'gap'"),
    ("pairs", lambda v: LossOutput(v, {"gap": (1.0, "3")}), "metric 'gap'"),
    ("token", lambda v: LossOutput(v, {"loss": (1.0, 3.0)}), "metric 'loss'"),
]


def learner(kind: str, change: Change, *, terms: bool = False) -> Learner:
    settings = {"kl": {"coefficient": 0.1, "where": "loss"}, "entropy_coefficient": 0.1} if terms else {}
    config = OnlineTrainerConfig(name="t", **settings)  # pyright: ignore[reportArgumentType]

    def loss(batch: Any) -> Any:
        return change(values(batch))

    chosen: Any = CheckedLoss(loss, "loss 'odd'", policy_terms(config)) if terms else loss
    return Learner(Module(kind), chosen, LocalStrategy(), config, 1)


@pytest.mark.parametrize("measured", [False, True])
@pytest.mark.parametrize(("kind", "change", "said"), SHAPES)
def test_what_a_loss_returns_fits_its_batch(kind: str, change: Change, said: str, measured: bool) -> None:
    if measured and said == "without a gradient":
        pytest.skip("nothing has one where nothing is learned")
    made = learner(kind, change)
    with pytest.raises(PluginError, match=rf"returned [\s\S]*{said}"):
        (made.measure if measured else made.update)([Item()] * 3)
    assert not made.module.weight.any()  # pyright: ignore[reportCallIssue, reportAttributeAccessIssue]


@pytest.mark.parametrize(("kind", "change", "said"), [row for row in SHAPES if row[0] == "token"][:4])
def test_terms_around_a_loss_do_not_hide_its_shape(kind: str, change: Change, said: str) -> None:
    """``[B] + [B, T]`` is ``[B, T]``, so the loss is checked before anything is added to it."""
    with pytest.raises(PluginError, match=rf"returned [\s\S]*{said}"):
        learner(kind, change, terms=True).update([Item()] * 3)


@pytest.mark.parametrize("kind", ["token", "pairs", "unpaired"])
@pytest.mark.parametrize("terms", [False, True])
def test_the_right_shape_trains(kind: str, terms: bool) -> None:
    def change(row: torch.Tensor) -> LossOutput:
        return LossOutput(row, {"gap": (row.detach().sum(), 9), "more": (1, torch.tensor([3.0]))})

    assert learner(kind, change, terms=terms and kind == "token").update([Item()] * 3)["more"] == pytest.approx(1 / 3)


IN_PLACE: list[tuple[str, str, Callable[[Any], Any]]] = [
    ("token", "mask_BT", lambda batch: batch.mask_BT.zero_()),
    ("token", "advantages_BT", lambda batch: batch.advantages_BT.mul_(0)),
    ("token", "advantages_BT", lambda batch: batch.advantages_BT[0].fill_(2)),
    ("token", "old_logprobs_BT", lambda batch: batch.old_logprobs_BT.copy_(batch.logprobs_BT.detach())),
    ("token", "ref_logprobs_BT", lambda batch: batch.ref_logprobs_BT.detach().add_(1)),
    ("token", "logprobs_BT", lambda batch: batch.logprobs_BT.mul_(2)),
    ("pairs", "chosen_B", lambda batch: batch.chosen_B.add_(1)),
    ("unpaired", "desirable_B", lambda batch: batch.desirable_B.logical_not_()),
    ("token", "mask_BT", lambda batch: object.__setattr__(batch, "mask_BT", GRID.clone())),
]


@pytest.mark.parametrize("measured", [False, True])
@pytest.mark.parametrize("terms", [False, True])
@pytest.mark.parametrize(("kind", "field", "change"), IN_PLACE)
def test_a_loss_that_changes_its_batch_is_named_before_anything_is_learned(
    kind: str, field: str, change: Callable[[Any], Any], terms: bool, measured: bool
) -> None:
    def loss(batch: Any) -> LossOutput:
        out = LossOutput(values(batch) * 1.0)
        change(batch)
        return out

    made = learner(kind, lambda row: LossOutput(row))
    config = OnlineTrainerConfig(name="t", kl={"coefficient": 0.1, "where": "loss"})  # pyright: ignore[reportArgumentType]
    added = policy_terms(config) if terms and kind == "token" else []
    made.loss = CheckedLoss(loss, "loss 'odd'", added)
    module: Any = made.module
    module.register_forward_hook(lambda *given: own_tensors(given[-1]))
    with pytest.raises(PluginError, match=rf"(changing [\w, ]*{field}|in-place)[\s\S]*in.place"):
        (made.measure if measured else made.update)([Item()] * 3)
    assert not module.weight.any()


def own_tensors(batch: Any) -> Any:
    """The batch over tensors that no other test sees; the policy's keep their gradient."""
    named = {f.name: getattr(batch, f.name) for f in fields(batch)}
    return type(batch)(**{k: v if v is None else v.clone() for k, v in named.items()})


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool, torch.complex64])
@pytest.mark.parametrize("grad", [True, False])
def test_a_loss_without_fractions_is_named_by_its_dtype(dtype: torch.dtype, grad: bool) -> None:
    batch = Module("pairs")(None)
    with pytest.raises(PluginError, match=rf"a loss of {dtype}"), torch.set_grad_enabled(grad):
        CheckedLoss(lambda b: LossOutput(values(b).detach().to(dtype)))(batch)
