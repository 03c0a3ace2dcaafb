"""The first pairs of one order a seed, in files of several lengths."""

from __future__ import annotations

from pathlib import Path
from random import Random

from rlhf_studies.common.pocket import pairs_of, write_pairs
from rlhf_studies.reward_model_pairs.config import COUNTS, RewardModelPairsConfig
from rlhf_study.ablation.run import Ablation


class RewardModelPairs(Ablation[RewardModelPairsConfig]):
    def files(self, seed: int, folder: Path) -> dict[str, Path]:
        pairs = pairs_of(self.config.worlds[self.config.world]["dataset"], seed)
        Random(f"pairs/{seed}").shuffle(pairs["train"])
        files = {str(count): write_pairs(folder / f"{count}.jsonl", pairs["train"][:count]) for count in COUNTS}
        return {**files, "heldout": write_pairs(folder / "heldout.jsonl", pairs["heldout"])}
