"""Demonstrations of three sources."""

from __future__ import annotations

from pathlib import Path
from random import Random

from rlhf_plugin_pocket import is_hollow, of_split
from rlhf_plugin_prm.steps import split_steps
from rlhf_studies.common.ablation.policies import Policies
from rlhf_studies.common.pocket import Row, sampled_answers, write_jsonl
from rlhf_studies.sft_sources.config import SftSourcesConfig

HEDGES = ("I guess ", "Maybe ", "I think ", "Perhaps ")


class SftSources(Policies[SftSourcesConfig]):
    def files(self, seed: int, folder: Path) -> dict[str, Path]:
        files = {name: folder / f"{name}.jsonl" for name in ("human", "synthetic", "mixed", "heldout")}
        if not all(file.is_file() for file in files.values()):
            rows = demonstrations(self.config.rows, seed)
            for name, file in files.items():
                write_jsonl(file, rows[name])
        return files


def demonstrations(count: int, seed: int) -> dict[str, list[Row]]:
    human = [row(question, fact.statement()) for fact, question in of_split("train")]
    synthetic = [row(a.prompt.text, revised(a.text)) for a in sampled_answers(len(human), 1, seed, "train")]
    chosen = Random(f"rows/{seed}").sample(range(len(human)), count)
    return {
        "human": [human[i] for i in chosen],
        "synthetic": [synthetic[i] for i in chosen],
        "mixed": [(human if n % 2 else synthetic)[i] for n, i in enumerate(chosen)],
        "heldout": [row(question, fact.statement()) for fact, question in of_split("heldout")],
    }


def row(prompt: str, completion: str) -> Row:
    return {"prompt": prompt, "completion": completion}


def revised(draft: str) -> str:
    """A draft without what the principles find wrong: flattery, a hedge, what follows the answer."""
    sentences = [draft[s.start : s.end].strip() for s in split_steps(draft, "sentence")]
    answer = next((sentence for sentence in sentences if not is_hollow(sentence)), draft)
    hedge = next((hedge for hedge in HEDGES if answer.startswith(hedge)), "")
    return answer.removeprefix(hedge)
