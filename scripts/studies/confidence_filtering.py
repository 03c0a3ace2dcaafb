"""Does a reward model learn more from the pairs that another is sure of? Halves and quarters in the pocket world.

    python scripts/studies/confidence_filtering.py [--seeds 0 1 2] [--pairs 4096] [--trunk full] [--out PATH]

For each seed a Bradley-Terry model is trained on all pairs; on the half that this model is surest of, by the size of
its margin, and on a random half; on its surest quarter; on the surest half of the surest half, by the margins of the
model of that half (two cycles, what `rlhf data flywheel` does); on a random quarter; and on the half with the highest
margin by its sign (what the model denies goes first). All make the same number of updates. Every model is measured on
the same held-out pairs twice: against their labels, which have the annotator's noise and length bias, and against the
gold score, on the pairs whose sides differ in it. `--trunk frozen` computes the trunk's features once and trains linear
heads on them: many seeds in seconds. Writes OUT.json after every seed, goes on from there, and OUT.md.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from rlhf_core.api import ModelConfig, PairBatch, PreferencePair
from rlhf_core.kernels.matmul import use_products
from rlhf_core.models.load import load_policy
from rlhf_core.pocket.data import of_split
from rlhf_core.pocket.gold import gold_score
from rlhf_core.registry import Registry
from rlhf_core.runs.atomic import write_json
from rlhf_plugin_datagen.confidence import accuracy, confidences, top
from rlhf_plugin_datagen.outside import open_datasets
from rlhf_plugin_reward.config import EnsembleConfig, RewardModelConfig
from rlhf_plugin_reward.encoding import Encoder
from rlhf_plugin_reward.loss import BradleyTerry
from rlhf_plugin_reward.net import RewardNet, fresh_net, new_head
from rlhf_plugin_reward.pairs import encode_pairs
from rlhf_plugin_reward.scoring import by_length, score_ids
from rlhf_plugin_reward.train import fit

VARIANTS = {
    "all": "all pairs",
    "surest_half": "surest half",
    "random_half": "random half",
    "surest_quarter": "surest quarter",
    "two_cycles": "two cycles (quarter)",
    "random_quarter": "random quarter",
    "signed_half": "highest half, by sign",
}
Floats = npt.NDArray[np.float64]
Rows = list[int]


class Full:
    """Whole reward models, by the recipe of `rlhf train --algo reward_model`.

    Args:
        splits: pairs of ``train`` and ``heldout``.
    """

    batch_size = 64

    def __init__(self, splits: Mapping[str, Sequence[PreferencePair]]) -> None:
        self.policy = load_policy(ModelConfig())
        encoder = Encoder(self.policy.tokenizer, self.policy.context)
        self.items = {name: encode_pairs(pairs, encoder, Counter()) for name, pairs in splits.items()}

    def train(self, rows: Rows, seed: int) -> RewardNet:
        """A fresh model after as many updates as all pairs make in one epoch."""
        config = EnsembleConfig(
            optimizer=RewardModelConfig().optimizer,
            batch_size=self.batch_size,
            micro_batch_size=self.batch_size,
            epochs=len(self.items["train"]) / len(rows),
        )
        items = [self.items["train"][i] for i in rows]
        return fit(config, fresh_net(self.policy, 1, seed, "none"), items, seed, "cpu")

    def margins(self, net: RewardNet, split: str) -> Floats:
        """Chosen minus rejected of every pair of a split."""
        items = self.items[split]
        chosen, rejected = (
            score_ids(net, ids, 16384)[:, 0] for ids in ([i.chosen_ids for i in items], [i.rejected_ids for i in items])
        )
        return chosen - rejected


class Frozen(Full):
    """Linear heads on the trunk's last-token features, by the same loss; Adam at 1e-2, 8 epochs."""

    epochs, learning_rate = 8, 1e-2

    def __init__(self, splits: Mapping[str, Sequence[PreferencePair]]) -> None:
        super().__init__(splits)
        net = fresh_net(self.policy, 1, 0, "frozen")
        self.features = {
            name: [self.read(net, [i.chosen_ids for i in items]), self.read(net, [i.rejected_ids for i in items])]
            for name, items in self.items.items()
        }

    @torch.inference_mode()
    def read(self, net: RewardNet, ids: Sequence[Sequence[int]]) -> torch.Tensor:
        """Features ``[N, H]``."""
        out = torch.zeros(len(ids), net.head.in_features)
        for rows in by_length(ids, 16384):
            out[rows] = net.features([ids[i] for i in rows])
        return out.clone()

    def train(self, rows: Rows, seed: int) -> Any:
        """A head after as many updates as all pairs make in all epochs."""
        chosen, rejected = (f[rows] for f in self.features["train"])
        head = new_head(chosen.shape[1], 1, seed)
        updates = len(self.items["train"]) * self.epochs // self.batch_size
        optimizer = torch.optim.Adam(head.parameters(), self.learning_rate)
        falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, updates)
        loss, order, rng = BradleyTerry(0.0, 0.01), np.zeros(0, int), np.random.default_rng(seed)
        for _ in range(updates):
            while len(order) < self.batch_size:
                order = np.concatenate([order, rng.permutation(len(rows))])
            batch, order = torch.from_numpy(order[: self.batch_size]), order[self.batch_size :]
            optimizer.zero_grad()
            pairs = PairBatch(head(chosen[batch])[:, 0], head(rejected[batch])[:, 0])
            loss(pairs).loss.mean().backward()
            optimizer.step()
            falling.step()
        return head

    @torch.inference_mode()
    def margins(self, net: Any, split: str) -> Floats:
        """Chosen minus rejected of every pair of a split."""
        chosen, rejected = self.features[split]
        return net(chosen - rejected)[:, 0].double().numpy()


def prefer(pair: PreferencePair, facts: dict[str, Any]) -> float:
    """Gold score of chosen minus that of rejected."""
    fact = facts[pair.prompt[-1]["content"]]
    good, bad = (gold_score(fact.attribute.name, fact.value, t).value for t in (pair.chosen, pair.rejected))
    return good - bad


def run_seed(lab: Full, pairs: Sequence[PreferencePair], golds: Sequence[float], seed: int) -> dict[str, Any]:
    """Train and measure every variant."""
    found: dict[str, Any] = {}

    def model(name: str, rows: Rows) -> Floats:
        net = lab.train(rows, seed)
        margins = lab.margins(net, "heldout")
        decided = [m * np.sign(g) for m, g in zip(margins, golds) if abs(g) > 1e-9]
        found[name] = {
            "pairs": len(rows),
            "labels": accuracy(list(margins))._asdict(),
            "gold": accuracy(decided)._asdict(),
        }
        return lab.margins(net, "train")

    def best(rows: Rows, values: Sequence[float | None], keep: float) -> Rows:
        return [rows[i] for i in top(values, keep, [""] * len(rows))]

    whole = list(range(len(pairs)))
    chance = confidences([], pairs, "random", seed)
    first = model("all", whole)
    half = best(whole, list(np.abs(first)), 0.5)
    second = model("surest_half", half)
    model("random_half", best(whole, chance, 0.5))
    model("surest_quarter", best(whole, list(np.abs(first)), 0.25))
    model("two_cycles", best(half, list(np.abs(second[half])), 0.5))
    model("random_quarter", best(whole, chance, 0.25))
    model("signed_half", best(whole, list(first), 0.5))
    return {**found, "denied": {"all": float((first < 0).mean()), "surest_half": float((first[half] < 0).mean())}}


def table(results: Sequence[dict[str, Any]]) -> str:
    """Mean over seeds (lowest to highest), and the difference from all pairs, seed by seed."""
    lines = [
        "| trained on | pairs | agrees with labels | than all pairs | agrees with gold | than all pairs |",
        "|---|---|---|---|---|---|",
    ]
    for name, label in VARIANTS.items():
        cells: list[str] = []
        for what in ("labels", "gold"):
            values = [r[name][what]["rate"] for r in results]
            gains = [100 * (v - r["all"][what]["rate"]) for v, r in zip(values, results)]
            cells += [
                f"{mean(values):.3f} ({min(values):.3f} to {max(values):.3f})",
                "" if name == "all" else f"{mean(gains):+.1f} pp ({min(gains):+.1f} to {max(gains):+.1f})",
            ]
        lines.append(f"| {label} | {results[0][name]['pairs']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def denied(results: Sequence[dict[str, Any]]) -> str:
    """How often the first model denies the label of a pair that it was trained on."""
    share = {k: mean([r["denied"][k] for r in results]) for k in ("all", "surest_half")}
    return (
        f"The first model denies the label of {share['all']:.1%} of all pairs that it was trained on, and of "
        f"{share['surest_half']:.1%} of its surest half."
    )


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean."""
    return sum(values) / len(values)


def main() -> None:
    """Run, print, record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--pairs", type=int, default=4096)
    parser.add_argument("--trunk", choices=("full", "frozen"), default="full")
    parser.add_argument("--out", type=Path, default=Path("docs/studies/confidence_filtering"))
    args = parser.parse_args()
    use_products("auto")
    file = args.out.with_suffix(".json")
    state: dict[str, Any] = {"pairs": args.pairs, "trunk": args.trunk, "seeds": {}}
    before = json.loads(file.read_text()) if file.is_file() else {}
    state = before if {**before, "seeds": {}} == state else state
    registry = Registry()
    data = open_datasets(registry, "pocket/assistant", limit=args.pairs)
    splits = {split: data.pairs(split) for split in ("train", "heldout")}
    facts = {question: fact for fact, question in of_split("heldout")}
    golds = [prefer(pair, facts) for pair in splits["heldout"]]
    lab = (Frozen if args.trunk == "frozen" else Full)(splits)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    for seed in args.seeds:
        if str(seed) not in state["seeds"]:
            state["seeds"][str(seed)] = run_seed(lab, splits["train"], golds, seed)
            write_json(file, state)
        print(f"seed {seed} done", flush=True)
    results = [state["seeds"][str(seed)] for seed in args.seeds]
    text = f"{table(results)}\n\n{denied(results)}"
    args.out.with_suffix(".md").write_text(
        f"`python scripts/studies/confidence_filtering.py --pairs {args.pairs} --trunk {args.trunk}`, {len(results)} "
        f"seeds, {len(golds)} held-out pairs, {results[0]['all']['gold']['n']} of which differ in gold\n\n{text}\n"
    )
    print(text)


if __name__ == "__main__":
    main()
