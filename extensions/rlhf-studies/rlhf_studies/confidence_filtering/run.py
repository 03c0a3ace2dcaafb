"""Seven selections of the training pairs, and how often each model agrees with labels and with gold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from rlhf_core.config import Registry
from rlhf_core.data import PreferencePair
from rlhf_core.losses import PairBatch
from rlhf_core.models import ModelConfig, load_policy, use_matmul_backend
from rlhf_core.runs import win_rate
from rlhf_plugin_datagen.confidence import confidences, top
from rlhf_plugin_datagen.outside import open_datasets
from rlhf_plugin_pocket import gold_score, of_split
from rlhf_plugin_reward.encoding import Encoder
from rlhf_plugin_reward.loss import BradleyTerry
from rlhf_plugin_reward.net import RewardNet, fresh_net, new_head
from rlhf_plugin_reward.pairs import encode_pairs
from rlhf_plugin_reward.reward import by_length
from rlhf_studies.confidence_filtering.config import ConfidenceFilteringConfig
from rlhf_study.study import Study
from rlhf_study.tables import markdown, mean, spread

VARIANTS = {
    "all": "all pairs",
    "surest_half": "surest half",
    "random_half": "random half",
    "surest_quarter": "surest quarter",
    "two_cycles": "two cycles (quarter)",
    "random_quarter": "random quarter",
    "signed_half": "highest half, by sign",
}
Pairs = Mapping[str, Sequence[PreferencePair]]


class ConfidenceFiltering(Study[ConfidenceFilteringConfig]):
    """The trunk's features are computed once for all seeds that are run here."""

    @cached_property
    def pairs(self) -> Pairs:
        data = open_datasets(Registry(), "pocket/assistant", limit=self.config.pairs)
        return {"train": data.pairs("train"), "heldout": data.pairs("heldout")[: self.config.heldout]}

    @cached_property
    def models(self) -> Heads:
        use_matmul_backend("auto")
        return Heads(self.pairs)

    def run(self, seed: int, folder: Path) -> dict[str, Any]:
        measure = Measure(self.models, gold_margins(self.pairs["heldout"]), seed)
        everything = list(range(len(self.pairs["train"])))
        chance = confidences([], self.pairs["train"], "random", seed)
        first = measure("all", everything)
        half = highest(everything, np.abs(first), 0.5)
        second = measure("surest_half", half)
        measure("random_half", highest(everything, chance, 0.5))
        measure("surest_quarter", highest(everything, np.abs(first), 0.25))
        measure("two_cycles", highest(half, np.abs(second[half]), 0.5))
        measure("random_quarter", highest(everything, chance, 0.25))
        measure("signed_half", highest(everything, first, 0.5))
        denied = {"all": float((first < 0).mean()), "surest_half": float((first[half] < 0).mean())}
        return {**measure.results, "denied": denied}

    def table(self, results: Mapping[int, Mapping[str, Any]]) -> str:
        seeds = list(results.values())
        rows: list[tuple[object, ...]] = []
        for variant, label in VARIANTS.items():
            cells = [cell for truth in ("labels", "gold") for cell in compared(seeds, variant, truth)]
            rows.append((label, seeds[0][variant]["pairs"], *cells))
        headers = ("trained on", "pairs", "agrees with labels", "than all pairs", "agrees with gold", "than all pairs")
        return f"{markdown(headers, rows)}\n\n{denied(seeds)}"


class Measure:
    """Trains a model on some rows, keeps how often it agrees with labels and gold, and returns its training margins."""

    def __init__(self, models: Heads, golds: Sequence[float], seed: int) -> None:
        self.models, self.golds, self.seed = models, golds, seed
        self.results: dict[str, Any] = {}

    def __call__(self, variant: str, rows: Rows) -> Floats:
        model = self.models.train(rows, self.seed)
        margins = self.models.margins(model, "heldout")
        by_gold = [margin * np.sign(gold) for margin, gold in zip(margins, self.golds) if abs(gold) > 1e-9]
        self.results[variant] = {
            "pairs": len(rows),
            "labels": win_rate(list(margins), [0.0] * len(margins))._asdict(),
            "gold": win_rate(by_gold, [0.0] * len(by_gold))._asdict(),
        }
        return self.models.margins(model, "train")


def highest(rows: Rows, values: Any, keep: float) -> Rows:
    return [rows[i] for i in top(list(values), keep, [""] * len(rows))]


def gold_margins(pairs: Sequence[PreferencePair]) -> list[float]:
    facts = {question: fact for fact, question in of_split("heldout")}
    margins: list[float] = []
    for pair in pairs:
        fact = facts[pair.prompt[-1]["content"]]
        chosen, rejected = (gold_score(fact.attribute.name, fact.value, t).value for t in (pair.chosen, pair.rejected))
        margins.append(chosen - rejected)
    return margins


def compared(seeds: Sequence[Mapping[str, Any]], variant: str, truth: str) -> tuple[str, str]:
    values = [seed[variant][truth]["rate"] for seed in seeds]
    gains = [100 * (value - seed["all"][truth]["rate"]) for value, seed in zip(values, seeds)]
    gain = f"{mean(gains):+.1f} pp ({min(gains):+.1f} to {max(gains):+.1f})"
    return spread(values), "" if variant == "all" else gain


def denied(seeds: Sequence[Mapping[str, Any]]) -> str:
    share = {key: mean([seed["denied"][key] for seed in seeds]) for key in ("all", "surest_half")}
    return (
        f"The first model denies the label of {share['all']:.1%} of all pairs that it was trained on, and of "
        f"{share['surest_half']:.1%} of its surest half."
    )


Floats = npt.NDArray[np.float64]
Rows = list[int]
Splits = Mapping[str, Sequence[PreferencePair]]
BATCH, BATCH_TOKENS = 64, 16384


class Heads:
    """Linear heads on the trunk's last-token features, by the loss of `reward_model`; Adam at 1e-2, 8 epochs."""

    epochs, learning_rate = 8, 1e-2

    def __init__(self, splits: Splits) -> None:
        policy = load_policy(ModelConfig())
        encoder, net = Encoder(policy.tokenizer, policy.context), fresh_net(policy, 1, 0, "frozen")
        self.features: dict[str, list[torch.Tensor]] = {}
        for name, pairs in splits.items():
            items = encode_pairs(pairs, encoder, Counter())
            sides = [item.chosen_ids for item in items], [item.rejected_ids for item in items]
            self.features[name] = [features(net, ids) for ids in sides]

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
        chosen, rejected = self.features[split]
        return model(chosen - rejected)[:, 0].double().numpy()


@torch.inference_mode()
def features(net: RewardNet, ids: Sequence[Sequence[int]]) -> torch.Tensor:
    """Last-token features ``[N, H]``."""
    out = torch.zeros(len(ids), net.head.in_features)
    for rows in by_length(ids, BATCH_TOKENS):
        out[rows] = net.features([ids[i] for i in rows])
    return out.clone()
