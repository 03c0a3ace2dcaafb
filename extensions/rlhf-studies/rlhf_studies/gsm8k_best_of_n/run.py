"""One evaluation per style of prompt, and lm_eval's verdicts beside ours."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rlhf_core.cli import context_of, open_registry
from rlhf_core.models import ModelConfig
from rlhf_eval.cli import suite_of
from rlhf_eval.harness import Job, evaluate
from rlhf_eval.plot import curves
from rlhf_eval.selectors import parse_selector
from rlhf_eval.store import read
from rlhf_studies.common.outside import data_file, model_path
from rlhf_studies.gsm8k_best_of_n.config import Gsm8kBestOfNConfig
from rlhf_study.study import Study
from rlhf_study.tables import interval, markdown

FILTERS = {"strict-match": "strict", "flexible-extract": "lenient"}
"""lm_eval's filter of gsm8k_cot -> our reading that it is compared with."""
EXAMPLES = 5
REPORT_KEYS = ("prompts", "samples", "completions", "categories", "modes", "endings", "seconds")


class Gsm8kBestOfN(Study[Gsm8kBestOfNConfig]):
    def run(self, seed: int, folder: Path) -> dict[str, Any]:
        return {style: self.measured(style, seed, folder / style) for style in self.config.styles}

    def measured(self, style: str, seed: int, folder: Path) -> dict[str, Any]:
        config, ctx = self.config, context_of(open_registry(), seed=seed)
        suite = suite_of(
            ctx,
            "gsm8k",
            path=str(data_file(config.data, "gsm8k", "test.jsonl.gz")),
            style=style,
            samples=config.samples,
            limit=config.prompts,
            max_tokens=config.max_tokens,
            settings=(f"chunk={config.chunk}", "workers=1"),
        )
        selectors = tuple(parse_selector(text, ctx) for text in config.best_by)
        job = Job(suite, ModelConfig(path=model_path(config.model)), seed, selectors)
        log = logging.getLogger(__name__)
        folder_of_rows, report = evaluate(job, ctx, folder, lambda text: log.info("%s: %s", style, text), config.budget)
        beside = {"lm_eval": against_lm_eval(read(folder_of_rows).rows)} if find_spec("lm_eval") else {}
        return {**{key: report[key] for key in REPORT_KEYS if key in report}, "curves": dict(curves(report)), **beside}

    def table(self, results: Mapping[int, Mapping[str, Any]]) -> str:
        return "\n\n".join(
            style_table(style, of_style) for figures in results.values() for style, of_style in figures.items()
        )

    def save(self, results: Mapping[int, Mapping[str, Any]], folder: Path) -> None:
        for file in folder.glob("seed-*/*/curve.png"):
            shutil.copy(file, folder / f"result_{file.parent.name}.png")


def style_table(style: str, figures: Mapping[str, Any]) -> str:
    lines = {name: dict(curve) for name, curve in figures["curves"].items()}
    keys = ("value", "low", "high")
    rows = [(k, *(interval([curve[k][key] for key in keys]) for curve in lines.values())) for k in lines["pass@k"]]
    return markdown((f"`{style}`, k", *lines), rows)


def against_lm_eval(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """lm_eval's own filters and metric on the same completions, and the first rows that the two judge otherwise."""
    from rlhf_eval.lm_harness.filters import agreement

    agreements: dict[str, Any] = {}
    for one in agreement("gsm8k_cot", rows, FILTERS):
        differ = {"only_theirs": one.only_theirs, "only_ours": one.only_ours}
        agreements[one.filter] = {
            "theirs": one.theirs,
            "ours": one.ours,
            "agree": 1 - sum(map(len, differ.values())) / len(rows),
            **{
                who: {"count": len(which), "examples": [example(rows[i]) for i in which[:EXAMPLES]]}
                for who, which in differ.items()
            },
        }
    return agreements


def example(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "row": f"{row['id']}#{row['sample']}",
        "wanted": row["answer"],
        "we_read": row["detail"],
        "end": row["completion"][-120:],
    }
