"""Our verdict on every case; agreement by source, and each case on which we and its authors differ."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rlhf_core.data import read_rows
from rlhf_plugin_verifiers.maths.choice import chosen_letter
from rlhf_plugin_verifiers.maths.equal import Rules
from rlhf_plugin_verifiers.maths.gsm8k import read_number
from rlhf_plugin_verifiers.maths.verifier import grade_math
from rlhf_plugin_verifiers.number_forms import same_number
from rlhf_plugin_verifiers.numeric import reference_number
from rlhf_studies.common.outside import data_file
from rlhf_studies.verifier_cases.config import VerifierCasesConfig
from rlhf_study.study import Study
from rlhf_study.tables import markdown


class Judged(NamedTuple):
    source: str
    test: str
    gold: str
    pred: str
    expected: bool
    ours: bool
    math_verify: bool


class VerifierCases(Study[VerifierCasesConfig]):
    def run(self, seed: int, folder: Path) -> dict[str, Any]:
        file = data_file(self.config.data, "verifier_cases", "math.jsonl.gz")
        judged = [judge(row) for row in read_rows(str(file)).rows[: self.config.limit]]
        return {"counts": counts(judged), "differ": [case._asdict() for case in judged if case.ours != case.expected]}

    def table(self, results: Mapping[int, Mapping[str, Any]]) -> str:
        figures = next(iter(results.values()))
        rows = [(source, n["cases"], n["ours"], n["math_verify"]) for source, n in figures["counts"].items()]
        differ = [described(Judged(**case)) for case in figures["differ"]]
        text = markdown(("source", "cases", "ours", "math-verify 0.9"), rows)
        return "\n".join([text, "", "Where we differ from the expected verdict:", "", *differ])


def judge(row: Mapping[str, Any]) -> Judged:
    """Our verdict on one case, with the settings that its authors tested under."""
    gold, pred = str(row["gold"]), "" if row["pred"] is None else str(row["pred"])
    source, _, test = row["source"].partition("@")
    expected, theirs = bool(row["expected"]), row["math_verify_0_9_0"]
    right = is_right(gold, pred, row.get("options", {}))
    agrees = theirs is not None and bool(theirs) == expected
    return Judged(source, test.rpartition("::")[2], gold, pred, expected, right, agrees)


def is_right(gold: str, pred: str, options: Mapping[str, Any]) -> bool:
    kinds = options.get("match_types", options.get("match_type", ["latex", "expr"]))
    if kinds == ["NativeLetters"]:
        return chosen_letter(gold) is not None and chosen_letter(gold) == chosen_letter(pred)
    if options.get("task") == "gsm8k":
        number, answer = reference_number(gold), read_number(pred, "lenient")
        return number is not None and answer is not None and same_number(number, answer)
    strict, sets = options.get("strict", True), options.get("allow_set_relation_comp", False)
    return grade_math(pred, gold, Rules(tuple(kinds), options.get("precision", 6), strict, sets)).right


def counts(judged: Sequence[Judged]) -> dict[str, dict[str, int]]:
    counts: dict[str, dict[str, int]] = defaultdict(lambda: {"cases": 0, "ours": 0, "math_verify": 0})
    for case in judged:
        for key in (case.source, "total"):
            counts[key]["cases"] += 1
            counts[key]["ours"] += case.ours == case.expected
            counts[key]["math_verify"] += case.math_verify
    return dict(sorted(counts.items(), key=lambda item: (item[0] == "total", item[0])))


def described(case: Judged) -> str:
    return (
        f"- `{case.source}` {case.test}: expected {int(case.expected)}, ours {int(case.ours)}\n"
        f"  - reference `{case.gold[:100]!r}`\n  - answer `{case.pred[:160]!r}`"
    )
