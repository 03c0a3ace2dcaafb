"""Runs every measure and probe on one or several rewards."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress as Bar
from rich.progress import TextColumn, TimeElapsedColumn

from rlhf_core.config import BuildContext, ComponentConfig
from rlhf_core.data import json_values
from rlhf_plugin_reward_eval import measures, probes
from rlhf_plugin_reward_eval.cases import Case, Cases, Text, prompt_key
from rlhf_plugin_reward_eval.responses import Response
from rlhf_plugin_reward_eval.reward_bench_2 import reward_bench_2
from rlhf_plugin_reward_eval.scorer import Scorer
from rlhf_plugin_reward_eval.stats import Floats

PROBES = ("length", "hollow", "content", "batch", "turns")


@dataclass(frozen=True)
class Settings:
    probes: Sequence[str] = PROBES
    probe_pairs: int = 200
    """Pairs that the probes change; every change is scored anew."""
    max_missing: float = 0.1
    seed: int = 0


@dataclass
class Report:
    """Everything that was measured; JSON values only but for ``sides``."""

    data: dict[str, Any]
    rewards: dict[str, dict[str, Any]] = field(default_factory=dict)
    agreement: list[dict[str, Any]] = field(default_factory=list)
    sides: dict[str, tuple[Floats, Floats]] = field(default_factory=dict)
    """Reward -> scores of chosen and of rejected, for the plots."""

    def as_json(self) -> dict[str, Any]:
        """For machines; what is undefined is null."""
        return json_values({"data": self.data, "rewards": self.rewards, "agreement": self.agreement})


def describe_data(cases: Cases, responses: Sequence[Response]) -> dict[str, Any]:
    return {
        "pairs": len(cases.pairs),
        "split": cases.split,
        "left_out": dict(cases.counts),
        "prompts": len({prompt_key(c.chosen.prompt) for c in cases.pairs}),
        "responses_with_gold": len(responses),
    }


def measure_rewards(
    rewards: Mapping[str, ComponentConfig],
    contexts: Mapping[str, BuildContext],
    cases: Cases,
    responses: Sequence[Response],
    settings: Settings,
    gold: Callable[[Text], float] | None,
) -> Report:
    """Every reward's figures, one reward after the other, and their agreement."""
    report = Report(describe_data(cases, responses))
    with Progress() as progress:
        for label, config in rewards.items():
            with contexts[label].open("reward", config) as reward:
                measure(Scorer(reward, label, progress.start(label)), cases, responses, settings, gold, report)
    report.agreement = measures.agreement(report.sides, cases.pairs)
    return report


def measure(
    scorer: Scorer,
    cases: Cases,
    responses: Sequence[Response],
    settings: Settings,
    gold: Callable[[Text], float] | None,
    report: Report,
) -> None:
    seed, pairs = settings.seed, cases.pairs
    sides = scorer([c.chosen for c in pairs]), scorer([c.rejected for c in pairs])
    scorer.refuse_missing(np.concatenate(sides), settings.max_missing)
    scored = measures.Scored.of(pairs, *sides)
    figures: dict[str, Any] = {
        **measures.accuracy(scored, seed),
        "scores": statistics(sides),
        "missing": {k: n for k, n in scorer.statuses.items() if k != "ok"},
        "calibration": measures.calibration(scored),
        "length": measures.length(scored, seed),
        **measures.by_subset(scored, seed),
    }
    if grid := measures.rm_bench(scored, seed):
        figures["rm_bench"] = grid
    if bench := reward_bench_2(pairs, *sides):
        figures["reward_bench_2"] = bench
    if graded := _graded(pairs, responses, gold):
        figures |= gold_figures(scorer, graded, settings)
    figures["probes"] = probe(scorer, pairs, settings, scored.spread or math.nan)
    report.rewards[scorer.label], report.sides[scorer.label] = figures, sides


def gold_figures(scorer: Scorer, graded: Sequence[Response], settings: Settings) -> dict[str, Any]:
    """Rank correlation with the gold score, and the best-of-n curve where prompts have several responses."""
    scores_N = scorer([r.text for r in graded])
    scorer.refuse_missing(scores_N, settings.max_missing)
    figures: dict[str, Any] = {"gold": measures.against_gold(graded, scores_N, settings.seed)}
    if curve := measures.best_of_n(graded, scores_N, settings.seed):
        figures["best_of_n"] = curve
    return figures


def _graded(
    pairs: Sequence[Case], responses: Sequence[Response], gold: Callable[[Text], float] | None
) -> list[Response]:
    """The given responses; without them both sides of the pairs, where the dataset has a gold score."""
    if responses or gold is None:
        return list(responses)
    texts = {t.key: t for c in pairs for t in (c.chosen, c.rejected)}
    return [Response(t, gold(t)) for t in texts.values()]


def statistics(sides: tuple[Floats, Floats]) -> dict[str, float]:
    scores = np.concatenate(sides)
    return {"mean": float(np.nanmean(scores)), "std": float(np.nanstd(scores))}


def probe(scorer: Scorer, pairs: Sequence[Case], settings: Settings, spread: float) -> dict[str, Any]:
    """The chosen probes, of clips only the batch's; none of a reward that scores everything alike."""
    drawn, seed = probes.sampled(pairs, settings.probe_pairs, settings.seed), settings.seed
    run: dict[str, Callable[[], dict[str, Any]]] = {
        "length": lambda: probes.length_probe(scorer, drawn, seed, spread),
        "hollow": lambda: probes.hollow_probe(scorer, drawn, seed, spread),
        "content": lambda: probes.content_probe(scorer, drawn, seed, spread),
        "batch": lambda: probes.batch_probe(scorer, drawn, spread),
        "turns": lambda: probes.turns_probe(scorer, pairs, seed, spread),  # all: only their last turns are scored anew
    }
    allowed = ("batch",) if any(case.chosen.media for case in pairs) else PROBES
    return {name: run[name]() for name in allowed if name in settings.probes and math.isfinite(spread)}


class Progress:
    """``with Progress() as p: advance = p.start("ensemble"); advance(32)``"""

    def __init__(self) -> None:
        console = Console(stderr=True)
        self.bar = Bar(
            TextColumn("{task.description}"),
            TextColumn("{task.completed:.0f} scored"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )

    def __enter__(self) -> Progress:
        self.bar.start()
        return self

    def __exit__(self, *args: object) -> None:
        self.bar.stop()

    def start(self, label: str) -> Callable[[int], None]:
        """A new line; call the function returned with the number of conversations scored."""
        task = self.bar.add_task(label, total=None)
        return lambda count: self.bar.advance(task, count)
