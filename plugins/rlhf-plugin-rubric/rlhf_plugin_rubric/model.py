"""A reward model of grades: a trunk and one linear head per criterion, learned by mean squared error.

Suffixes: ``_B`` responses, ``_K`` criteria.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rlhf_core.config import BuildContext
from rlhf_core.data import write_json
from rlhf_core.losses import LossOutput
from rlhf_core.models import ModelError, on_device
from rlhf_core.rewards import Sample, Score
from rlhf_plugin_reward.encoding import Encoder, read_view
from rlhf_plugin_reward.reward import as_score, encoder_of, score_ids
from rlhf_plugin_reward.store import load_shared, save_shared
from rlhf_plugin_rubric.rubric import Rubric

if TYPE_CHECKING:
    from rlhf_plugin_reward.net import RewardNet
    from rlhf_plugin_rubric.config import RubricModelConfig
    from rlhf_plugin_rubric.graded import GradedItem


@dataclass(frozen=True, slots=True)
class GradeBatch:
    """What the loss sees, both ``[B, K]``."""

    scores_BK: torch.Tensor
    grades_BK: torch.Tensor


class GradeModule(torch.nn.Module):
    """Scores responses: ``mean_K + heads(last token)``, so that the heads learn only what differs from the mean."""

    mean_K: torch.Tensor

    def __init__(self, net: RewardNet, mean_K: Sequence[float]) -> None:
        super().__init__()
        self.net = net
        self.register_buffer("mean_K", torch.tensor(list(mean_K), dtype=torch.float32), persistent=False)

    def forward(self, items: Sequence[GradedItem], compute: Callable[[Any, Sequence[Any]], Any] | None = None) -> Any:
        """Return the batch of a micro-batch; with ``compute``, ``compute(self, items)`` instead."""
        return self.batch(items) if compute is None else compute(self, items)

    def batch(self, items: Sequence[GradedItem]) -> GradeBatch:
        """Scores and grades, ``[B, K]``."""
        scores_BK = self.net([i.ids for i in items])
        grades_BK = on_device([i.grades_K for i in items], scores_BK.device, scores_BK.dtype)
        return GradeBatch(scores_BK + self.mean_K.to(scores_BK.device), grades_BK)


class GradeLoss:
    r"""``sum_k w_k (score_k - grade_k)^2`` of each response; ``unexplained``: over that of the mean training grade."""

    def __init__(self, rubric: Rubric, mean_K: Sequence[float]) -> None:
        self.rubric, self.mean_K = rubric, torch.tensor(list(mean_K), dtype=torch.float32)

    def __call__(self, batch: GradeBatch) -> LossOutput:
        """Return ``loss_B`` with errors by criterion."""
        weights_K = on_device(self.rubric.weights, batch.scores_BK.device, None)
        error_BK = (batch.scores_BK - batch.grades_BK) ** 2
        apart_BK = (batch.grades_BK - self.mean_K.to(batch.grades_BK.device)) ** 2
        count = float(len(error_BK))
        metrics: dict[str, Any] = {
            f"mse/{name}": (error_BK[:, k].detach().sum(), count) for k, name in enumerate(self.rubric.names)
        }
        metrics["unexplained"] = ((error_BK.detach() @ weights_K).sum(), (apart_BK @ weights_K).sum().clamp(min=1e-12))
        return LossOutput(error_BK @ weights_K, metrics)


def save_model(
    net: RewardNet,
    tokenizer: Any,
    rubric: Rubric,
    mean_K: Sequence[float],
    folder: Path,
    weights: Mapping[str, Any] | None = None,
) -> None:
    """Write trunk, heads, and ``rubric.json`` with what they mean."""
    folder.mkdir(parents=True, exist_ok=True)
    save_shared(net, tokenizer, folder, weights)
    write_json(folder / "rubric.json", {"rubric": rubric.model_dump(mode="json"), "mean": list(mean_K)})


class RubricModelReward:
    """The weighted mean of a model's grades; one part per criterion."""

    def __init__(
        self, net: RewardNet, encoder: Encoder, rubric: Rubric, mean_K: Sequence[float], batch_tokens: int
    ) -> None:
        self.net, self.encoder, self.rubric, self.batch_tokens = net, encoder, rubric, batch_tokens
        self.mean_K = np.array(mean_K)

    @classmethod
    def from_config(cls, config: RubricModelConfig, ctx: BuildContext) -> RubricModelReward:
        config.preflight(ctx)
        reward = cls.load(config, str(ctx.device))
        reward.encoder.check_episodes(str(config.path), getattr(ctx.config, "environment", None))
        return reward

    @classmethod
    def load(cls, config: RubricModelConfig, device: str) -> RubricModelReward:
        folder = Path(config.path).expanduser()
        meta = json.loads((folder / "rubric.json").read_text())
        rubric = Rubric.model_validate(meta["rubric"])
        net, tokenizer = load_shared(folder, meta)
        if not net.head.out_features == len(rubric.criteria) == len(meta["mean"]):
            raise ModelError(
                f"'{config.path}' has {net.head.out_features} heads for {len(rubric.criteria)} criteria",
                fix="copy the whole folder, or train it again",
            )
        view = replace(read_view(folder), own=True).or_else(None, None, config.max_length)
        encoder = encoder_of(net, tokenizer, view)
        return cls(net.to(device).eval(), encoder, rubric, meta["mean"], config.batch_tokens)

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        """One score per sample; a non-finite one is an error, not a number."""
        if not samples:
            return []
        ids = [self.encoder.encode_sample(s) for s in samples]
        grades_NK = score_ids(self.net, ids, self.batch_tokens) + self.mean_K
        rows = [dict(zip(self.rubric.names, map(float, row))) for row in grades_NK]
        return [as_score(self.rubric.value(row), row) for row in rows]
