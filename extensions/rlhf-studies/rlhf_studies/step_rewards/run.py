"""A process reward model a seed, and a policy per way of giving credit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rlhf_plugin_pocket import is_hollow, load_pairs
from rlhf_plugin_prm.steps import split_steps
from rlhf_studies.common.pocket import write_jsonl
from rlhf_studies.step_rewards.config import StepRewardsConfig
from rlhf_study.runs import train
from rlhf_study.study import Study
from rlhf_study.tables import markdown, spread

ARMS = {
    "lowest": "lowest step, one advantage per completion",
    "own": "a step's own reward",
    "sum": "own and later steps (sum)",
    "min": "own and later steps (min)",
}
GOLD = ("value", "hollow", "right", "words")
QUIET = {"checkpoint_every": 0, "eval_every": 0, "eval_samples": 100}
PROCESS = {
    "name": "prm",
    "split": "sentence",
    "batch_size": 32,
    "micro_batch_size": 32,
    "optimizer": {"learning_rate": 3e-4},
    **QUIET,
}


class StepRewards(Study[StepRewardsConfig]):
    def run(self, seed: int, folder: Path) -> dict[str, Any]:
        sentences = folder / "sentences.jsonl"
        write_jsonl(sentences, labelled_sentences(self.config.texts))
        process = {"seed": seed, "dataset": str(sentences), "trainer": PROCESS}
        model = train(folder / "process_model", process, self.config.process_model)
        arms = {ARMS[arm]: self.arm(arm, model.final, seed, folder) for arm in self.config.arms}
        return {"seed": seed, "process_model": model.summary["evaluation_after"], "arms": arms}

    def arm(self, arm: str, model: Path, seed: int, folder: Path) -> dict[str, Any]:
        trainer = {"name": "grpo", "steps": self.config.steps, "gold_samples": 100, **QUIET}
        reward = {"name": "prm", "path": str(model)}
        config = {"seed": seed, "dataset": "pocket/assistant", "reward": reward, "trainer": trainer}
        credit = {} if arm == "lowest" else {"advantage": {"name": "step", "credit": arm}}
        summary = train(folder / arm, config, credit, self.config.train).summary
        gold = {
            when: {key: summary[f"evaluation_{when}"][f"eval/gold/{key}"] for key in GOLD}
            for when in ("before", "after")
        }
        return {**gold, "seconds": summary["seconds"], "kl_last": summary["kl_last"]}

    def table(self, results: Mapping[int, Mapping[str, Any]]) -> str:
        arms = list(next(iter(results.values()))["arms"])
        labelled = [("nothing yet", arms[0], "before"), *((arm, arm, "after") for arm in arms)]
        rows = [
            (label, *(spread([figures["arms"][arm][when][key] for figures in results.values()], 2) for key in GOLD))
            for label, arm, when in labelled
        ]
        return markdown(("trained on", "gold", "hollow", "right", "words"), rows)


def labelled_sentences(texts: int) -> Iterator[dict[str, Any]]:
    for pair in load_pairs("train")[: texts // 2]:
        for side in ("chosen", "rejected"):
            sentences = [pair[side][s.start : s.end] for s in split_steps(pair[side], "sentence")]
            yield {
                "id": f"{pair['id']}-{side}",
                "prompt": pair["prompt"],
                "completion": pair[side],
                "labels": [not is_hollow(sentence) for sentence in sentences],
            }
