"""Two ways to train a reward model on some of the pairs: the whole model, or a linear head on features."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from rlhf_core.data import PreferencePair
from rlhf_core.losses import PairBatch
from rlhf_core.models import ModelConfig, load_policy
from rlhf_plugin_reward.config import EnsembleConfig, RewardModelConfig
from rlhf_plugin_reward.encoding import Encoder
from rlhf_plugin_reward.loss import BradleyTerry
from rlhf_plugin_reward.members import fit
from rlhf_plugin_reward.net import RewardNet, fresh_net, new_head
from rlhf_plugin_reward.pairs import encode_pairs
from rlhf_plugin_reward.scoring import by_length, score_ids

Floats = npt.NDArray[np.float64]
Rows = list[int]
Splits = Mapping[str, Sequence[PreferencePair]]
BATCH, BATCH_TOKENS = 64, 16384


class Trainable(Protocol):
    """Trains on rows of the training pairs, and says by how much a model prefers the chosen side."""

    def train(self, rows: Rows, seed: int) -> Any:
        """A fresh model, trained."""
        ...

    def margins(self, model: Any, split: str) -> Floats:
        """Chosen minus rejected of every pair of a split."""
        ...


class Full:
    """Whole reward models, by the recipe of ``rlhf train --algo reward_model``."""

    def __init__(self, splits: Splits) -> None:
        self.policy = load_policy(ModelConfig())
        encoder = Encoder(self.policy.tokenizer, self.policy.context)
        self.items = {name: encode_pairs(pairs, encoder, Counter()) for name, pairs in splits.items()}

    def train(self, rows: Rows, seed: int) -> RewardNet:
        """A fresh model after as many updates as all pairs make in one epoch."""
        config = EnsembleConfig(
            optimizer=RewardModelConfig().optimizer,
            batch_size=BATCH,
            micro_batch_size=BATCH,
            epochs=len(self.items["train"]) / len(rows),
        )
        items = [self.items["train"][i] for i in rows]
        return fit(config, fresh_net(self.policy, 1, seed, "none"), items, seed, "cpu")

    def margins(self, model: RewardNet, split: str) -> Floats:
        """Chosen minus rejected of every pair of a split."""
        chosen, rejected = (score_ids(model, ids, BATCH_TOKENS)[:, 0] for ids in self.sides(split))
        return chosen - rejected

    def sides(self, split: str) -> tuple[list[Any], list[Any]]:
        """Token ids of the chosen and of the rejected sides."""
        items = self.items[split]
        return [item.chosen_ids for item in items], [item.rejected_ids for item in items]


class Frozen:
    """Linear heads on the trunk's last-token features, by the same loss; Adam at 1e-2, 8 epochs."""

    epochs, learning_rate = 8, 1e-2

    def __init__(self, splits: Splits) -> None:
        whole = Full(splits)
        net = fresh_net(whole.policy, 1, 0, "frozen")
        self.features = {name: [features(net, ids) for ids in whole.sides(name)] for name in splits}

    def train(self, rows: Rows, seed: int) -> torch.nn.Module:
        """A head after as many updates as all pairs make in all epochs."""
        chosen, rejected = (features[rows] for features in self.features["train"])
        head = new_head(chosen.shape[1], 1, seed)
        updates = len(self.features["train"][0]) * self.epochs // BATCH
        optimizer = torch.optim.Adam(head.parameters(), self.learning_rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, updates)
        loss, order, rng = BradleyTerry(0.0, 0.01), np.zeros(0, int), np.random.default_rng(seed)
        for _ in range(updates):
            while len(order) < BATCH:
                order = np.concatenate([order, rng.permutation(len(rows))])
            batch, order = torch.from_numpy(order[:BATCH]), order[BATCH:]
            optimizer.zero_grad()
            loss(PairBatch(head(chosen[batch])[:, 0], head(rejected[batch])[:, 0])).loss.mean().backward()
            optimizer.step()
            schedule.step()
        return head

    @torch.inference_mode()
    def margins(self, model: torch.nn.Module, split: str) -> Floats:
        """Chosen minus rejected of every pair of a split."""
        chosen, rejected = self.features[split]
        return model(chosen - rejected)[:, 0].double().numpy()


@torch.inference_mode()
def features(net: RewardNet, ids: Sequence[Sequence[int]]) -> torch.Tensor:
    """Last-token features ``[N, H]``."""
    out = torch.zeros(len(ids), net.head.in_features)
    for rows in by_length(ids, BATCH_TOKENS):
        out[rows] = net.features([ids[i] for i in rows])
    return out.clone()
