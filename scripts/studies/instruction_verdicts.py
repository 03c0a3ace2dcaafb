"""Our instruction verdicts against those of the references: Google's checker on IFEval, the authors' on IFBench.

    python scripts/studies/instruction_verdicts.py --ifeval FOLDER/ifeval [--ifbench IFBench] [--out OUT]

FOLDER/ifeval holds ``input_data.jsonl`` and ``*_strict.jsonl.gz``, ``*_loose.jsonl.gz`` with a verdict per instruction;
IFBench is a clone of its repository, whose ``eval/`` holds the authors' verdicts. Writes OUT.md and OUT.json.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rlhf_core.data.files import read_json
from rlhf_plugin_verifiers.instructions.registry import checks
from rlhf_plugin_verifiers.instructions.verifier import judge


class Difference(NamedTuple):
    """One instruction on which we and the reference differ."""

    file: str
    key: int
    instruction: str
    ours: bool
    arguments: dict[str, Any]


class Compared(NamedTuple):
    """One file of reference verdicts."""

    file: str
    verdicts: int
    differences: list[Difference]


def main() -> None:
    """Parse the arguments, compare, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ifeval", type=Path, required=True)
    parser.add_argument("--ifbench", type=Path)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    found = list(compare_ifeval(args.ifeval)) + (list(compare_ifbench(args.ifbench)) if args.ifbench else [])
    report = table(found)
    print(report)
    if args.out:
        args.out.with_suffix(".md").write_text(report)
        summary = [{"file": f.file, "verdicts": f.verdicts, "differ": len(f.differences)} for f in found]
        args.out.with_suffix(".json").write_text(json.dumps(summary, indent=1) + "\n")


def compare_ifeval(folder: Path, every: int = 1) -> Iterator[Compared]:
    """Compare with every file of Google's verdicts; ``every=10`` takes each tenth row."""
    rows = read_json(str(folder / "input_data.jsonl")).rows
    for file in sorted(folder.glob("*.jsonl.gz")):
        yield compare(file, rows, "strict" if "_strict" in file.name else "loose", every)


def compare_ifbench(clone: Path) -> Iterator[Compared]:
    """Compare with the verdicts in the authors' repository, on the prompts that are still the data set's."""
    rows = {r["prompt"]: r for r in read_json(str(clone / "data/IFBench_test.jsonl")).rows}
    for mode in ("strict", "loose"):
        file = clone / "eval" / f"eval_results_{mode}.jsonl"
        kept = [rows.get(r["prompt"]) for r in read_json(str(file)).rows]
        yield compare(file, kept, mode)


def compare(file: Path, rows: Sequence[Any], mode: str, every: int = 1) -> Compared:
    """Compare one file with the rows that it was made from, in the same order; a row that is None is left out."""
    differences: list[Difference] = []
    count = 0
    for row, judged in list(zip(rows, read_json(str(file)).rows))[::every]:
        ids = [i.removeprefix("en:") for i in judged["instruction_id_list"]]
        if row is None or row["instruction_id_list"] != ids:
            continue
        ours = getattr(judge(judged["response"], checks(ids, row["kwargs"])), mode)
        count += len(ids)
        for name, mine, theirs, given in zip(ids, ours, judged["follow_instruction_list"], row["kwargs"]):
            if mine != theirs:
                given = {k: v for k, v in given.items() if v is not None}
                differences.append(Difference(file.name, row["key"], name, mine, given))
    return Compared(file.name, count, differences)


def table(found: Sequence[Compared]) -> str:
    """The report in Markdown."""
    rows = [f"| {f.file} | {f.verdicts} | {len(f.differences)} |" for f in found]
    each = [
        f"| {d.file} | {d.key} | {d.instruction} | {d.ours} | `{d.arguments}` |" for f in found for d in f.differences
    ]
    return "\n".join(
        [
            "| file | verdicts | differ |",
            "|---|---|---|",
            *rows,
            "",
            "| file | row | instruction | ours | its arguments |",
            "|---|---|---|---|---|",
            *each,
            "",
        ]
    )


if __name__ == "__main__":
    main()
