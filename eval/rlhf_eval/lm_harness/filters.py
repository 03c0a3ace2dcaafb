"""lm-evaluation-harness's own filters and metric on our rows: do two evaluations of the same generations agree?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rlhf_eval.lm_harness.config import LmEvalConfig
from rlhf_eval.lm_harness.tasks import settings_of


class Agreement(NamedTuple):
    filter: str
    theirs: float
    """Share that lm_eval counts as right."""
    ours: float
    """Share that we count as right."""
    only_theirs: list[int]
    """Rows that only lm_eval counts as right."""
    only_ours: list[int]


def exact_matches(task: str, completions: Sequence[str], targets: Sequence[str]) -> dict[str, list[bool]]:
    """Filter -> lm_eval's exact_match of each completion, computed by its own code from the task's own file."""
    from lm_eval.api.instance import Instance  # pyright: ignore[reportMissingImports]
    from lm_eval.api.metrics import exact_match_hf_evaluate  # pyright: ignore[reportMissingImports]
    from lm_eval.filters import build_filter_ensemble  # pyright: ignore[reportMissingImports]

    task_settings = settings_of(LmEvalConfig(task=task))
    metric = next(m for m in task_settings["metric_list"] if m["metric"] == "exact_match")
    options = {k: metric[k] for k in ("regexes_to_ignore", "ignore_case", "ignore_punctuation") if k in metric}
    matches: dict[str, list[bool]] = {}
    for chain in task_settings["filter_list"]:
        steps = [(f["function"], {k: v for k, v in f.items() if k != "function"} or None) for f in chain["filter"]]
        instances = [Instance("generate_until", {}, (text, {}), i) for i, text in enumerate(completions)]
        for instance, text in zip(instances, completions):
            instance.resps = [text]
        build_filter_ensemble(chain["name"], steps).apply(instances)
        read = [i.filtered_resps[chain["name"]] for i in instances]
        matches[chain["name"]] = [
            bool(exact_match_hf_evaluate(predictions=[r], references=[t], **options)["exact_match"])
            for r, t in zip(read, targets)
        ]
    return matches


def agreement(task: str, rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> list[Agreement]:
    """Our verdicts against lm_eval's on the same completions; ``columns``: lm_eval's filter -> our column."""
    lm_eval_right = exact_matches(task, [r["completion"] for r in rows], [str(r["answer"]) for r in rows])
    agreements: list[Agreement] = []
    for name, column in columns.items():
        our_right = [r[column] is not None and r[column] >= 1 for r in rows]
        agreements.append(
            Agreement(
                name,
                sum(lm_eval_right[name]) / len(rows),
                sum(our_right) / len(rows),
                [i for i, (a, b) in enumerate(zip(lm_eval_right[name], our_right)) if a and not b],
                [i for i, (a, b) in enumerate(zip(lm_eval_right[name], our_right)) if b and not a],
            )
        )
    return agreements
