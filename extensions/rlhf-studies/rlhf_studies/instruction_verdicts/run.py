"""Every file of reference verdicts, and each instruction on which we differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rlhf_core.data import read_rows
from rlhf_plugin_verifiers.instructions.verifier import checks, judge
from rlhf_studies.common.outside import data_file
from rlhf_studies.instruction_verdicts.config import InstructionVerdictsConfig
from rlhf_study.study import Study
from rlhf_study.tables import markdown


class InstructionVerdicts(Study[InstructionVerdictsConfig]):
    def run(self, seed: int, folder: Path) -> dict[str, Any]:
        compared = list(compare_ifeval(data_file(self.config.data, "ifeval"), self.config.every))
        compared += compare_ifbench(self.config.ifbench) if self.config.ifbench else []
        return {
            "files": [{"file": f.file, "verdicts": f.verdicts, "differ": len(f.differences)} for f in compared],
            "differences": [difference._asdict() for f in compared for difference in f.differences],
        }

    def table(self, results: Mapping[int, Mapping[str, Any]]) -> str:
        figures = next(iter(results.values()))
        files = [tuple(row.values()) for row in figures["files"]]
        differences = [
            (d["file"], d["key"], d["instruction"], d["ours"], f"`{d['arguments']}`") for d in figures["differences"]
        ]
        each = markdown(("file", "row", "instruction", "ours", "its arguments"), differences)
        return f"{markdown(('file', 'verdicts', 'differ'), files)}\n\n{each}"


class Difference(NamedTuple):
    file: str
    key: int
    instruction: str
    ours: bool
    arguments: dict[str, Any]


class Compared(NamedTuple):
    file: str
    verdicts: int
    differences: list[Difference]


def compare_ifeval(folder: Path, every: int = 1) -> Iterator[Compared]:
    rows = read_rows(str(folder / "input_data.jsonl")).rows
    for file in sorted(folder.glob("*.jsonl.gz")):
        yield compare(file, rows, "strict" if "_strict" in file.name else "loose", every)


def compare_ifbench(clone: Path) -> Iterator[Compared]:
    """Compare with the verdicts in the authors' repository, on the prompts that are still the data set's."""
    rows = {r["prompt"]: r for r in read_rows(str(clone / "data/IFBench_test.jsonl")).rows}
    for mode in ("strict", "loose"):
        file = clone / "eval" / f"eval_results_{mode}.jsonl"
        matching = [rows.get(r["prompt"]) for r in read_rows(str(file)).rows]
        yield compare(file, matching, mode)


def compare(file: Path, rows: Sequence[Any], mode: str, every: int = 1) -> Compared:
    """Compare one file with the rows that it was made from, in the same order; a row that is None is left out."""
    differences: list[Difference] = []
    count = 0
    for row, judged in list(zip(rows, read_rows(str(file)).rows))[::every]:
        ids = [i.removeprefix("en:") for i in judged["instruction_id_list"]]
        if row is None or row["instruction_id_list"] != ids:
            continue
        ours = getattr(judge(judged["response"], checks(ids, row["kwargs"], "published")), mode)
        count += len(ids)
        for name, our, their, arguments in zip(ids, ours, judged["follow_instruction_list"], row["kwargs"]):
            if our != their:
                arguments = {k: v for k, v in arguments.items() if v is not None}
                differences.append(Difference(file.name, row["key"], name, our, arguments))
    return Compared(file.name, count, differences)
