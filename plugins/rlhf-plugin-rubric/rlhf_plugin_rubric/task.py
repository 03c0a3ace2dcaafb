"""`rlhf train --algo rubric_model`: graded responses through the core's offline loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_core.config import BuildContext
from rlhf_core.data import DatasetError, Datasets
from rlhf_core.training import OfflineTrainer, load_trained_policy
from rlhf_plugin_reward.encoding import Encoder, View, write_view
from rlhf_plugin_reward.net import net_to_train
from rlhf_plugin_reward.task import RewardModelTask
from rlhf_plugin_rubric.config import RubricTrainerConfig
from rlhf_plugin_rubric.graded import Graded, GradedItem, encode_rows, read_rows
from rlhf_plugin_rubric.model import GradeLoss, GradeModule, save_model


class RubricTask(RewardModelTask):
    """A net with one head per criterion, and the graded responses it learns from."""

    def __init__(self, config: RubricTrainerConfig, ctx: BuildContext) -> None:
        self.config, self.ctx, self.rubric = config, ctx, config.rubric
        self.datasets = Datasets(ctx.config.dataset, ctx)
        counts = ctx.session.counts
        self.rows = {split: read_rows(self.datasets, split, self.rubric, counts) for split in ("train", "heldout")}
        self.mean_K = mean_grades(self.rows["train"])  # bad rows are found before the model is loaded
        policy = load_trained_policy(ctx)
        self.tokenizer = policy.tokenizer
        self.net = self.model = net_to_train(policy, len(self.rubric.criteria), ctx, config.train_trunk)
        self.net.head.weight.data.zero_()  # so that the first guess is the mean grade
        self.module = GradeModule(self.net, self.mean_K)
        self.view = View(config.turns, config.truncation, min(config.max_length, policy.context))
        self.encoder = Encoder(self.tokenizer, self.view.limit(policy.context), self.view)

    def items(self, split: str) -> list[GradedItem]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Tokenized rows; those that ``max_length`` cuts are counted."""
        return encode_rows(self.rows[split], self.encoder, self.ctx.session.counts)

    def conversations(self, item: Any) -> Sequence[Sequence[int]]:
        return (item.ids,)

    def texts(self, item: Any) -> Mapping[str, str]:
        return {"text": self.tokenizer.decode(item.ids)}

    def write_final(self, folder: Path, weights: Mapping[str, Any]) -> None:
        save_model(self.net, self.tokenizer, self.rubric, self.mean_K, folder, weights)
        write_view(self.view, folder)


class RubricTrainer(OfflineTrainer):
    """The offline loop over graded responses."""

    def __init__(self, config: RubricTrainerConfig, ctx: BuildContext) -> None:
        self.rubric_task = RubricTask(config, ctx)
        super().__init__(config, ctx, self.rubric_task)

    def loss(self) -> GradeLoss:
        """Mean squared error; there is no other."""
        return GradeLoss(self.rubric_task.rubric, self.rubric_task.mean_K)


def mean_grades(rows: list[Graded]) -> list[float]:
    if not rows:
        raise DatasetError("no row has grades to learn from", fix="check the dataset: prompt, completion and grades")
    grades_NK = np.array([row.grades_K for row in rows])
    if not np.ptp(grades_NK, axis=0).any():
        raise DatasetError(
            f"all {len(rows)} rows have the same grades: there is nothing to learn",
            fix="grade responses of different quality, or choose a judge that tells them apart",
        )
    return [float(v) for v in grades_NK.mean(0)]
