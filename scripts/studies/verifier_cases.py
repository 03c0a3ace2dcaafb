"""Agreement of our maths verifiers with cases from other projects' test suites, beside math-verify's own.

    python scripts/studies/verifier_cases.py --cases math.jsonl.gz [--out docs/studies/verifier_cases]

Writes OUT.json and OUT.md: agreement by source, and every case on which we and its authors differ.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

from rlhf_core.data.files import read_json
from rlhf_plugin_verifiers.maths.choice import chosen_letter
from rlhf_plugin_verifiers.maths.equal import Rules
from rlhf_plugin_verifiers.maths.gsm8k import close, gold_number, read_number
from rlhf_plugin_verifiers.maths.verifier import grade_math


class Judged(NamedTuple):
    """One case with both verdicts."""

    source: str
    test: str
    gold: str
    pred: str
    expected: bool
    ours: bool
    math_verify: bool


def main() -> None:
    """Parse the arguments, judge, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", required=True, help="math.jsonl.gz")
    parser.add_argument("--out", type=Path, help="writes OUT.json and OUT.md")
    args = parser.parse_args()
    judged = [judge(row) for row in read_json(args.cases).rows]
    report = table(judged)
    print(report)
    if args.out:
        args.out.with_suffix(".md").write_text(report)
        args.out.with_suffix(".json").write_text(json.dumps(counts(judged), indent=1) + "\n")


def judge(row: Any) -> Judged:
    """Our verdict on one case, with the settings that its authors tested under."""
    options = row.get("options", {})
    gold, pred = str(row["gold"]), "" if row["pred"] is None else str(row["pred"])
    kinds = options.get("match_types", options.get("match_type", ["latex", "expr"]))
    if kinds == ["NativeLetters"]:
        ours = chosen_letter(gold) is not None and chosen_letter(gold) == chosen_letter(pred)
    elif options.get("task") == "gsm8k":
        number, said = gold_number(gold), read_number(pred, "lenient")
        ours = number is not None and said is not None and close(said, number)
    else:
        rules = Rules(
            tuple(kinds),
            options.get("precision", 6),
            options.get("strict", True),
            options.get("allow_set_relation_comp", False),
        )
        ours = grade_math(pred, gold, rules).right
    source, _, test = row["source"].partition("@")
    return Judged(
        source,
        test.rpartition("::")[2],
        gold,
        pred,
        bool(row["expected"]),
        ours,
        row["math_verify_0_9_0"] is not None and bool(row["math_verify_0_9_0"]) == bool(row["expected"]),
    )


def counts(judged: list[Judged]) -> dict[str, dict[str, int]]:
    """By source: cases, agreements of ours and of math-verify (one that raised does not agree)."""
    found: dict[str, dict[str, int]] = defaultdict(lambda: {"cases": 0, "ours": 0, "math_verify": 0})
    for case in judged:
        for key in (case.source, "total"):
            found[key]["cases"] += 1
            found[key]["ours"] += case.ours == case.expected
            found[key]["math_verify"] += case.math_verify
    return dict(sorted(found.items(), key=lambda item: (item[0] == "total", item[0])))


def table(judged: list[Judged]) -> str:
    """The report in Markdown."""
    rows = [f"| {source} | {n['cases']} | {n['ours']} | {n['math_verify']} |" for source, n in counts(judged).items()]
    differ = [
        f"- `{c.source}` {c.test}: expected {int(c.expected)}, ours {int(c.ours)}\n"
        f"  - reference `{c.gold[:100]!r}`\n  - answer `{c.pred[:160]!r}`"
        for c in judged
        if c.ours != c.expected
    ]
    return "\n".join(
        [
            "| source | cases | ours | math-verify 0.9 |",
            "|---|---|---|---|",
            *rows,
            "",
            "Where we differ from the expected verdict:",
            "",
            *differ,
            "",
        ]
    )


if __name__ == "__main__":
    main()
