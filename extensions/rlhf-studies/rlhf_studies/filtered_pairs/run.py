"""A first model, and the pairs that it is sure of."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rlhf_plugin_datagen.confidence import By, confidences, summary, top
from rlhf_studies.common.pocket import pair_margins, pairs_of, write_pairs
from rlhf_studies.filtered_pairs.config import FilteredPairsConfig
from rlhf_study.ablation.run import Ablation
from rlhf_study.runs import Run

PARTS = {"half": 0.5, "quarter": 0.25}
KINDS: Mapping[str, By] = {"surest": "absolute", "random": "random"}


class FilteredPairs(Ablation[FilteredPairsConfig]):
    def prior_artifacts(self, seed: int, folder: Path) -> dict[str, Path]:
        """The first model, then the pairs by its margins."""
        made = super().prior_artifacts(seed, folder)
        pairs = pairs_of(self.config.worlds[self.config.world]["dataset"], seed)
        train = pairs["train"]
        margins = pair_margins("bradley_terry", made["first"], train)
        self.lowest = summary(margins, range(len(train)))["quarters"][0]
        made["heldout"] = write_pairs(folder / "heldout.jsonl", pairs["heldout"])
        for kind, by in KINDS.items():
            for part, share in PARTS.items():
                kept = top(confidences(margins, train, by, seed), share, [""] * len(train))
                made[f"{kind} {part}"] = write_pairs(folder / f"{kind}-{part}.jsonl", (train[i] for i in kept))
        return made

    def measured(self, run: Run) -> Mapping[str, float]:
        """Of the first model's least sure quarter, beside the arm with all pairs."""
        if run.folder.name != "all":
            return {}
        size, right = self.lowest["mean_abs_margin"], 1 - self.lowest["label_denied"]
        return {"margin_of_lowest_quarter": size, "labels_right_in_lowest_quarter": right}
