"""`rlhf train --algo prm` and `--algo orm`: labelled steps through the core's offline loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_core.config import BuildContext
from rlhf_core.data import DatasetError, Datasets
from rlhf_core.training import OfflineTrainer, load_trained_policy
from rlhf_plugin_prm.config import PrmConfig
from rlhf_plugin_prm.examples import Solution, check_both_classes, read_solutions
from rlhf_plugin_prm.net import StepEncoder, StepItem, StepModule, encode_solutions
from rlhf_plugin_prm.store import save_model
from rlhf_plugin_reward.net import net_to_train
from rlhf_plugin_reward.task import RewardModelTask


class StepTask(RewardModelTask):
    """A net with one head and the steps it learns from; checkpoints are those of a Bradley-Terry model."""

    def __init__(self, config: PrmConfig, ctx: BuildContext) -> None:
        self.config, self.ctx, self.steps = config, ctx, config
        self.datasets = Datasets(ctx.config.dataset, ctx)
        check_both_classes(self.solutions("train"), config.target)  # before the model is loaded, as bad rows are
        policy = load_trained_policy(ctx)
        self.tokenizer = policy.tokenizer
        self.stepper = StepEncoder(policy.tokenizer, min(config.max_length, policy.context))
        self.net = self.model = net_to_train(policy, 1, ctx, config.train_trunk)
        self.module = StepModule(self.net)

    def solutions(self, split: str) -> list[Solution]:
        return read_solutions(self.datasets.prompts(split), self.steps.split, self.datasets.where)

    def items(self, split: str) -> Sequence[StepItem]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Tokenized solutions; those that ``max_length`` cuts or leaves out are counted."""
        solutions, counts = self.solutions(split), self.ctx.session.counts
        items = encode_solutions(
            solutions, self.stepper, self.steps.target, self.steps.after_first_error == "ignore", counts
        )
        lost = len(solutions) - len(items)
        if lost > self.datasets.settings.max_dropped_fraction * len(solutions):
            raise DatasetError(
                f"{lost} of {len(solutions)} solutions have more than {self.stepper.max_length} tokens",
                fix="raise trainer.max_length, or allow more with dataset.max_dropped_fraction",
            )
        return items

    def conversations(self, item: Any) -> Sequence[Sequence[int]]:
        """None: steps are read in their middle."""
        return ()

    def texts(self, item: StepItem) -> Mapping[str, str]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return {"text": self.tokenizer.decode(item.ids), "labels": " ".join(str(int(v)) for v in item.labels_T)}

    def write_final(self, folder: Path, weights: Mapping[str, Any]) -> None:
        save_model(
            self.net,
            self.tokenizer,
            folder,
            self.steps.target,
            self.steps.split,
            weights,
            self.stepper.max_length,
        )


def build_trainer(config: PrmConfig, ctx: BuildContext) -> OfflineTrainer:
    return OfflineTrainer(config, ctx, StepTask(config, ctx))
