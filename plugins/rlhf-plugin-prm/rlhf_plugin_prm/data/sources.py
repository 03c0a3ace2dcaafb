"""Rows with labelled steps. A row that does not fit is named with file and line."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rlhf_core.data import DatasetError
from rlhf_core.rewards import Sample
from rlhf_plugin_prm.data.chains import KINDS, Chain, distinct_chains, gold, solve
from rlhf_plugin_prm.data.perturb import Kind, Labelled, NotWorked, perturb, untouched

if TYPE_CHECKING:
    from rlhf_plugin_prm.data.config import ChainStepsConfig, Gsm8kStepsConfig


Row = Mapping[str, Any]


class ChainSource:
    """The generated chains; as prompts a question stands once for each of its solutions."""

    def __init__(self, config: ChainStepsConfig) -> None:
        self.config = config

    def rows(self, split: str) -> Sequence[Row]:
        """Solutions of a split's questions; no question is in both."""
        config, heldout_count = self.config, max(1, self.config.chains // 4)
        rng = random.Random(f"chains/{config.seed}")
        try:
            chains = distinct_chains(config.chains + heldout_count, config.terms, config.largest, rng)
        except ValueError as error:
            raise DatasetError(str(error), fix="lower dataset.chains or raise dataset.terms") from error
        chosen = chains[: config.chains] if split == "train" else chains[config.chains :]
        return [row for n, chain in enumerate(chosen) for row in self._solutions(chain, f"{split}/{n:06d}")]

    def gold(self, sample: Sample) -> Mapping[str, float]:
        return gold(sample)

    def _solutions(self, chain: Chain, name: str) -> list[Row]:
        config = self.config
        shares = {"right": 1.0, "carried": config.carried, "slip": config.slip, "cancelled": config.cancelled}
        rows: list[Row] = []
        for kind in KINDS:
            rng = random.Random(f"{config.seed}/{name}/{kind}")
            whole = int(shares[kind])
            for n in range(whole + (rng.random() < shares[kind] - whole)):
                solution = solve(chain, kind, config.largest, rng)
                if solution is not None:
                    steps, labels = solution
                    rows.append(
                        {
                            "id": f"{name}/{kind}-{n}",
                            "prompt": chain.question,
                            "answer": str(chain.answer),
                            "completion": "\n".join(steps),
                            "labels": labels,
                            "kind": kind,
                            "outcome": kind != "carried",
                        }
                    )
        return rows


class Gsm8kSource:
    """GSM8K's problems with their published and changed solutions."""

    def __init__(self, config: Gsm8kStepsConfig, source: Any) -> None:
        self.config, self.source = config, source
        self._where: dict[str, list[str]] = {}

    def rows(self, split: str) -> Sequence[Row]:
        has_heldout_file = bool(self.config.heldout_path)
        read = split if has_heldout_file else "train"
        rows = list(enumerate(self.source.rows(read)))
        if not has_heldout_file:
            rows = [(n, r) for n, r in rows if self._held_out(n) == (split == "heldout")]
        if self.config.problems is not None:
            rows = random.Random(f"problems/{self.config.seed}").sample(rows, min(self.config.problems, len(rows)))
        placed = [(row, self.source.where(read, n)) for n, row_in in rows for row in self.solutions(row_in, read, n)]
        self._where[split] = [where for _, where in placed]
        return [row for row, _ in placed]

    def where(self, split: str, number: int) -> str:
        """File and line of the problem that a row was made of."""
        return self._where[split][number]

    def _held_out(self, number: int) -> bool:
        return random.Random(f"held out/{number}").random() < self.config.heldout_share

    def solutions(self, row: Row, split: str, number: int) -> list[Row]:
        try:
            return solutions(
                str(row["question"]),
                str(row["answer"]),
                f"{split}/{number:06d}",
                self.config.carried,
                self.config.slip,
                self.config.seed,
            )
        except (KeyError, NotWorked) as error:
            why = f"it has no column {error}" if isinstance(error, KeyError) else str(error)
            raise DatasetError(
                "a row is not in GSM8K's form",
                where=self.source.where(split, number),
                why=why,
                fix='each needs "question" and "answer", which ends with "#### X"',
            ) from error


def solutions(question: str, answer: str, name: str, carried: int, slip: int, seed: int) -> list[Row]:
    """Rows of one GSM8K problem: the published solution, and changed ones, each different."""
    first = untouched(answer)
    by_steps: dict[tuple[str, ...], tuple[str, Labelled]] = {first.steps: ("right", first)}
    counts: tuple[tuple[Kind, int], ...] = (("carried", carried), ("slip", slip))
    for kind, count in counts:
        rng, num_made = random.Random(f"{seed}/{name}/{kind}"), 0
        for _ in range(4 * count):
            changed = perturb(question, answer, kind, rng) if num_made < count else None
            if changed is not None and changed.steps not in by_steps:
                by_steps[changed.steps] = (f"{kind}-{num_made}", changed)
                num_made += 1
    return [_row(question, f"{name}/{variant}", variant.split("-")[0], s) for variant, s in by_steps.values()]


def _row(question: str, name: str, kind: str, solution: Labelled) -> Row:
    return {
        "id": name,
        "prompt": question,
        "steps": list(solution.steps),
        "labels": list(solution.labels),
        "outcome": solution.outcome,
        "kind": kind,
    }


class ProcessBenchSource:
    def __init__(self, source: Any) -> None:
        self.source = source

    def rows(self, split: str) -> Sequence[Row]:
        return [self._row(row, split, n) for n, row in enumerate(self.source.rows(split))]

    def where(self, split: str, number: int) -> str:
        return self.source.where(split, number)

    def _row(self, row: Row, split: str, number: int) -> Row:
        try:
            return {
                "id": row["id"],
                "prompt": row["problem"],
                "steps": row["steps"],
                "label": row["label"],
                "outcome": row["final_answer_correct"],
            }
        except KeyError as error:
            raise DatasetError(
                f"a row of ProcessBench has no column {error}",
                where=self.where(split, number),
                why=f"its columns: {', '.join(sorted(map(str, row)))}",
                fix="choose dataset.name=jsonl and map dataset.columns, or fix the row",
            ) from error
