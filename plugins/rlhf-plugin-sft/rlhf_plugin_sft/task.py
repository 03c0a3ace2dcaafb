"""Demonstrations to training items."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_core.config import BuildContext
from rlhf_core.data import Datasets
from rlhf_core.models import Formatter, seed_everything
from rlhf_core.training import OfflineTrainer, PolicyModule, TrainingSample, load_trained_policy
from rlhf_plugin_sft.config import SftConfig
from rlhf_plugin_sft.turns import all_answers, last_answer


class SftTask:
    """A policy and the demonstrations it imitates; prompts are read, completions are learned."""

    def __init__(self, config: SftConfig, ctx: BuildContext) -> None:
        seed_everything(ctx.seed)
        self.config, self.ctx = config, ctx
        self.datasets = Datasets(ctx.config.dataset, ctx)
        self.datasets.demonstrations("train")  # bad rows are found before the model is loaded
        self.policy = load_trained_policy(ctx)
        self.formatter = Formatter(self.policy.tokenizer, ctx.config.model.prompt_format)
        self.model = self.policy.model
        self.module = PolicyModule(self.model)

    def items(self, split: str) -> Sequence[TrainingSample]:
        """Tokenize; examples over ``max_length`` or the model's context are dropped and counted.

        Raises:
            DatasetError: more than ``dataset.max_dropped_fraction`` of them, or all of one source.
        """
        limit = min(self.config.max_length, self.policy.context)
        samples: list[TrainingSample] = []
        sizes: list[tuple[str, str, int]] = []
        cut = all_answers if self.config.learn == "all" else last_answer
        for row in self.datasets.demonstrations(split):
            prompt, completion, learned = cut(self.formatter, row.prompt, row.completion, row.turn, row.tools)
            count = len(completion)
            sizes.append((row.id, row.source, len(prompt) + count))
            if len(prompt) + count <= limit:
                samples.append(
                    TrainingSample(row.id, prompt, completion, np.array(learned), np.ones(count, np.float32))
                )
        self.datasets.check_lengths(
            sizes,
            limit,
            f"max_length {self.config.max_length}, context {self.policy.context}",
            "raise trainer.max_length",
            context=self.policy.context,
        )
        self.ctx.session.counts.update(+Counter({"examples_too_long": len(sizes) - len(samples)}))
        return samples

    def texts(self, item: TrainingSample) -> Mapping[str, str]:
        """Prompt and completion as the model sees them."""
        return {
            "prompt": self.policy.tokenizer.decode(item.prompt_ids),
            "completion": self.policy.tokenizer.decode(item.completion_ids),
        }

    def write_model(self, folder: Path, weights: Mapping[str, Any]) -> None:
        """Weights (adapters, with LoRA) and tokenizer."""
        self.policy.save(folder, weights)

    def load_model(self, folder: Path) -> None:
        """Read a checkpoint's weights."""
        self.policy.load_weights(folder)

    def write_final(self, folder: Path, weights: Mapping[str, Any]) -> None:
        """Plain Hugging Face form, adapters merged."""
        self.policy.save(folder, weights, merge=True)


def build_trainer(config: SftConfig, ctx: BuildContext) -> OfflineTrainer:
    """The offline loop over demonstrations."""
    return OfflineTrainer(config, ctx, SftTask(config, ctx))
