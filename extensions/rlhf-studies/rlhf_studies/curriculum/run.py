"""Pass rates of the start model, then one run per arm."""

from __future__ import annotations

from pathlib import Path

from rlhf_core.config import merge_settings
from rlhf_core.data import read_jsonl
from rlhf_studies.common.ablation.sums import COPIES
from rlhf_studies.common.pocket import write_jsonl
from rlhf_studies.curriculum.config import CurriculumConfig
from rlhf_study.ablation.run import Ablation
from rlhf_study.runs import rlhf


class Curriculum(Ablation[CurriculumConfig]):
    def files(self, seed: int, folder: Path) -> dict[str, Path]:
        rates = folder / "pass_rates.jsonl"
        if not rates.is_file():
            world = merge_settings(dict(self.config.worlds[self.config.world]), dict(self.config.train))
            tokens = world["trainer"]["sampling"]["max_tokens"]
            words = (
                "--verifier",
                "numeric",
                "--n",
                self.config.tries,
                "--max-tokens",
                tokens,
                "--seed",
                seed,
                "--set",
                "split=train",
            )
            source = world["dataset"]["sources"][0]["source"]
            named = source["name"] + (f"/{source['subset']}" if self.config.world == "pocket" else "")
            model = world.get("model", {}).get("path", "pocket")
            rlhf("eval", "prompts", "--model", model, "--set", f"dataset={named}", *words, "--out", folder / "passes")
            rows = list(read_jsonl(folder / "passes" / "pass_rates.jsonl"))
            write_jsonl(rates, [{**row, "id": f"{copy}/{tail(row['id'])}"} for copy in COPIES for row in rows])
        return {"pass_rates": rates}


def tail(prompt: str) -> str:
    """A prompt's id without its source. Example: ``pocket/arithmetic/train/3+4`` -> ``train/3+4``"""
    return prompt[prompt.index("train/") :]
