"""Every case with both verdicts, and each on which the two differ."""

from __future__ import annotations

import json
import random
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_core.config import RlhfError
from rlhf_plugin_agents.suites.bfcl import CATEGORIES, example, fault_in_calls, read_category
from rlhf_studies.bfcl_verdicts.config import BfclVerdictsConfig
from rlhf_studies.bfcl_verdicts.mutations import mutated
from rlhf_studies.common.outside import data_file, other_python
from rlhf_study.study import Study
from rlhf_study.tables import markdown

MUTATIONS = 10


class BfclVerdicts(Study[BfclVerdictsConfig]):
    def run(self, seed: int, folder: Path) -> dict[str, Any]:
        python = other_python(self.config.python, "bfcl-eval")
        rows = list(cases(data_file(self.config.data, "bfcl"), self.config.limit, seed))
        sent = "".join(json.dumps({k: r[k] for k in ("functions", "calls", "answers", "file")}) + "\n" for r in rows)
        program = Path(__file__).with_name("theirs.py")
        done = subprocess.run([python, program], input=sent, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RlhfError("the leaderboard's checker ended early", why=done.stderr[-2000:])
        return compared(rows, [json.loads(line) for line in done.stdout.splitlines()])

    def table(self, results: Mapping[int, Mapping[str, Any]]) -> str:
        tally = next(iter(results.values()))
        rows = [*tally["by_mutation"].items(), ("judged by both", tally["judged_by_both"]), ("equal", tally["equal"])]
        return markdown(("mutation: the leaderboard's verdict", "cases"), rows)


def cases(folder: Path, limit: int | None, seed: int) -> Iterator[dict[str, Any]]:
    for category, file in CATEGORIES.items():
        if category == "irrelevance":
            continue
        for row, answers in read_category(folder, file)[:limit]:
            needed = {f["name"]: f["parameters"]["required"] for f in row["function"]}
            right = [(n, example(a, needed[n])) for answer in answers for n, a in answer.items()]
            rng = random.Random(f"{row['id']}/{seed}" if seed else row["id"])
            for what, calls in [("none", right), *(mutated(right, answers, rng) for _ in range(MUTATIONS))]:
                case = {"file": file, "functions": row["function"], "answers": answers}
                yield {"id": row["id"], "what": what, "calls": calls, **case}


def compared(rows: Sequence[Mapping[str, Any]], theirs: Sequence[Sequence[Any]]) -> dict[str, Any]:
    kinds: Counter[str] = Counter()
    differing, raised = list[dict[str, Any]](), list[dict[str, Any]]()
    words = {True: "valid", False: "invalid", None: "raises"}
    for row, (valid, kind, text) in zip(rows, theirs, strict=True):
        fault = fault_in_calls(row["functions"], row["calls"], row["answers"])
        kinds[f"{row['what']}: {words[valid]}"] += 1
        if valid != (fault is None):
            shown = {"mutation": row["what"], "ours": fault, "theirs": f"{kind} {text}"}
            (raised if valid is None else differing).append({"id": row["id"], "calls": row["calls"], **shown})
    judged = len(rows) - sum(valid is None for valid, *_ in theirs)
    refused = [r["id"] for r, t in zip(rows, theirs) if r["what"] == "none" and t[0] is False]
    return {
        "cases": len(rows),
        "questions": len({r["id"] for r in rows}),
        "judged_by_both": judged,
        "equal": judged - len(differing),
        "examples_that_the_leaderboard_refuses": refused,
        "by_mutation": dict(sorted(kinds.items())),
        "differing": differing,
        "raised_there": raised[:20],
    }
