"""`rlhf train --algo reward_model`: preference pairs through the core's offline loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_core.config import BuildContext
from rlhf_core.data import Datasets
from rlhf_core.models.slices import load_named
from rlhf_core.models.tensor_files import save_named
from rlhf_core.training import OfflineTrainer, load_trained_policy
from rlhf_plugin_reward.classifier_files import save_classifier
from rlhf_plugin_reward.config import RewardModelConfig
from rlhf_plugin_reward.encoding import Encoder, View
from rlhf_plugin_reward.net import net_to_train
from rlhf_plugin_reward.pairs import PairItem, PairModule, encode_pairs
from rlhf_plugin_reward.reward import keep_features


class RewardModelTask:
    """A net with one head and the pairs it learns from."""

    def __init__(self, config: RewardModelConfig, ctx: BuildContext) -> None:
        self.config, self.ctx = config, ctx
        self.datasets = Datasets(ctx.config.dataset, ctx)
        self.datasets.pairs("train")  # bad rows are found before the model is loaded
        policy = load_trained_policy(ctx)
        self.tokenizer = policy.tokenizer
        self.net = self.model = net_to_train(policy, 1, ctx, config.train_trunk)
        self.module = PairModule(self.net)
        self.view = View(config.turns, config.truncation, min(config.max_length, policy.context))
        self.encoder = Encoder(self.tokenizer, self.view.limit(policy.context), self.view)

    def items(self, split: str) -> Sequence[PairItem]:
        """Tokenized pairs; those that ``max_length`` cuts are counted."""
        return encode_pairs(self.datasets.pairs(split), self.encoder, self.ctx.session.counts)

    def conversations(self, item: Any) -> Sequence[Sequence[int]]:
        """What the net reads by its last token."""
        return item.chosen_ids, item.rejected_ids

    def complete(self, split: str, items: Sequence[Any]) -> Sequence[Any]:
        """Let a frozen trunk see what the run will use: all at once, for a resumed run meets it in other batches."""
        if self.net.frozen:
            keep_features(self.net, [ids for i in items for ids in self.conversations(i)], self.ctx.strategy)
        return items

    def texts(self, item: PairItem) -> Mapping[str, str]:
        """Both conversations as the net sees them."""
        return {
            "chosen_text": self.tokenizer.decode(item.chosen_ids),
            "rejected_text": self.tokenizer.decode(item.rejected_ids),
        }

    def write_model(self, folder: Path, weights: Mapping[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        trained = {name for name, parameter in self.net.named_parameters() if parameter.requires_grad}
        save_named(weights, [name for name in weights if name in trained], folder / "trained.safetensors")

    def load_model(self, folder: Path) -> None:
        load_named(self.net, folder / "trained.safetensors")

    def write_final(self, folder: Path, weights: Mapping[str, Any]) -> None:
        """A one-label sequence classifier."""
        save_classifier(self.net, self.tokenizer, folder, weights, self.view)


def build_trainer(config: RewardModelConfig, ctx: BuildContext) -> OfflineTrainer:
    return OfflineTrainer(config, ctx, RewardModelTask(config, ctx))
