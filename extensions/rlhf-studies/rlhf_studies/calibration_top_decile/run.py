"""Margins by kind of pair, pooled over seeds: the implied share, sigmoid(margin), and the right one, by annotator or
gold score. An ensemble's standardised margins are multiplied by its members' mean deviation, which makes logits of
them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_core.config import BuildContext
from rlhf_core.data import read_jsonl
from rlhf_core.rewards import Sample
from rlhf_plugin_reward.reward import aggregate, standardise
from rlhf_plugin_reward_eval.stats import Bin, deciles, expected_calibration_error
from rlhf_studies.calibration_top_decile.config import CalibrationTopDecileConfig
from rlhf_studies.common.pocket import assistant, gold_of
from rlhf_study.runs import Run, runs_in
from rlhf_study.study import Study
from rlhf_study.tables import markdown

KINDS = ("held-out pairs", "policy, first steps", "policy, last steps")


class CalibrationTopDecile(Study[CalibrationTopDecileConfig]):
    def run(self, seed: int, folder: Path) -> dict[str, Any]:
        sweep = (self.config.sweep or folder.parent.parent / "lambda_sweep") / f"seed-{seed}"
        ctx, last, margins_by_run = assistant(), self.config.last, dict[str, Any]()
        for run in runs_in(sweep):
            judged, end = Judged(run), int(run.summary["steps"])
            margins = (
                judged.heldout(),
                judged.sampled(range(1, 1 + last), ctx),
                judged.sampled(range(end - last + 1, end + 1), ctx),
            )
            margins_by_run[run.folder.name] = dict(zip(KINDS, margins))
        return margins_by_run

    def table(self, results: Mapping[int, Mapping[str, Any]]) -> str:
        headers = ("reward", "pairs", "number", "right, all", "top decile: implied", "right", "gap")
        rows: list[tuple[object, ...]] = []
        for reward in sorted({name for figures in results.values() for name in figures}):
            for kind in KINDS:
                margins = np.array([m for figures in results.values() for m in figures.get(reward, {}).get(kind, ())])
                if len(margins):
                    rows.append((reward, kind, *cells(deciles(margins))))
        return markdown((*headers, "error over deciles"), rows)


def cells(bins: Sequence[Bin]) -> tuple[object, ...]:
    number, top = sum(each.n for each in bins), bins[-1]
    return (
        number,
        f"{sum(each.n * each.right for each in bins) / number:.3f}",
        f"{top.confidence:.3f}",
        f"{top.right:.3f} ({top.low:.3f} to {top.high:.3f})",
        f"{top.gap:+.3f}",
        f"{expected_calibration_error(bins):.3f}",
    )


class Judged:
    """A finished run and the scale of its reward; the run ``single`` beside it names the ensemble of both."""

    def __init__(self, run: Run) -> None:
        self.run, self.reward = run, run.config["reward"]
        member = Path(Run(run.folder.with_name("single")).config["reward"]["path"])
        single = self.reward["name"] == "bradley_terry"
        self.member = int(member.name.removeprefix("member_")) if single else None
        self.meta: dict[str, Any] = json.loads((member.parent / "ensemble.json").read_text())
        self.unit = 1.0 if single else float(np.mean(self.meta["std"]))

    def heldout(self) -> list[float]:
        """Margins of the annotator's held-out pairs, chosen over rejected."""
        chosen_N, rejected_N = (self.scores(np.array(self.meta["heldout"][s])) for s in ("chosen", "rejected"))
        return [self.unit * float(margin) for margin in chosen_N - rejected_N]

    def scores(self, raw_NK: Any) -> Any:
        """The reward of the members' raw scores."""
        if self.member is not None:
            return raw_NK[:, self.member]
        scores_NK = standardise(raw_NK, np.array(self.meta["mean"]), np.array(self.meta["std"]))
        return aggregate(scores_NK, self.reward["aggregate"], self.reward["uncertainty_penalty"])

    def sampled(self, steps: Iterable[int], ctx: BuildContext) -> list[float]:
        prompts, wanted = {p.id: p for p in ctx.datasets.prompts("train")}, set(steps)
        signed_margins: list[float] = []
        for row in read_jsonl(self.run.folder / "trace.jsonl"):
            if row.get("event") != "prompt" or row["step"] not in wanted:
                continue
            scored = sorted((c["score"], c["text"]) for c in row["completions"] if c["score"] is not None)
            best, worst = (gold_of(ctx, Sample(prompts[row["prompt_id"]], text)) for _, text in (scored[-1], scored[0]))
            margin = self.unit * (scored[-1][0] - scored[0][0])
            if best != worst and margin > 0:
                signed_margins.append(margin if best > worst else -margin)
        return signed_margins
