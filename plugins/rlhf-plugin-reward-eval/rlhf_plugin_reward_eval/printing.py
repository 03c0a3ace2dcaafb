"""The report as tables for people."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import click

from rlhf_core.cli import table
from rlhf_plugin_reward_eval.evaluation import Report


def number(value: Any, digits: int = 3) -> str:
    """``"-"`` for what is undefined."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "-"
    return f"{value:.{digits}f}" if isinstance(value, float) else str(value)


def spanned(value: float, ends: Sequence[float], digits: int = 3) -> str:
    """Example: ``0.625 (0.581 to 0.667)``"""
    return f"{number(value, digits)} ({number(ends[0], digits)} to {number(ends[1], digits)})"


def show(report: Report) -> None:
    data = report.data
    left_out = "".join(f", {n} {name.replace('_', ' ')}" for name, n in data["left_out"].items())
    click.echo(f"{data['pairs']} pairs of {data['prompts']} prompts ({data['split']}){left_out}\n")
    _overview(report.rewards)
    lengths = next(iter(report.rewards.values()))["length"]
    click.echo(f"\nThe labels prefer the longer response in {number(lengths['labels_prefer_longer'])} of pairs.")
    for name, figures in report.rewards.items():
        click.echo("")
        click.secho(name, bold=True)
        _one_reward(figures)
    if report.agreement:
        click.echo("\nagreement")
        _agreement(report.agreement)


def _overview(rewards: Mapping[str, Mapping[str, Any]]) -> None:
    rows = [
        (
            name,
            spanned(figures["accuracy"], figures["wilson"]),
            f"{number(figures['bootstrap'][0])} to {number(figures['bootstrap'][1])}",
            figures["ties"],
            sum(figures["missing"].values()),
            number(figures["calibration"].get("ece")),
            number(figures["calibration"].get("ece_rescaled")),
            number(figures["length"]["reward_prefers_longer"]),
        )
        for name, figures in rewards.items()
    ]
    table(
        ("reward", "accuracy (95 %)", "bootstrap by prompt", "ties", "missing", "ECE", "rescaled", "prefers longer"),
        rows,
    )


def _agreement(agreement: Sequence[Mapping[str, Any]]) -> None:
    rows = [
        (
            " / ".join(pair["rewards"]),
            number(pair["spearman"]),
            number(pair["pairs_ordered_alike"]),
            number(pair["wrong_together"]),
            number(pair["wrong_together_by_chance"]),
        )
        for pair in agreement
    ]
    table(("rewards", "Spearman", "pairs ordered alike", "wrong together", "by chance"), rows)


def _one_reward(figures: Mapping[str, Any]) -> None:
    _calibration(figures["calibration"])
    _lengths(figures["length"])
    _subsets(figures)
    if gold := figures.get("gold"):
        click.echo(
            f"gold: Spearman {_rho(gold)} over {gold['responses']} responses ({gold['missing']} missing), "
            f"{number(gold['spearman_within_prompts'])} within prompts ({gold['prompts_varied']})"
        )
    if curve := figures.get("best_of_n"):
        rows = [
            (c["n"], number(c["kl"]), spanned(c["gold"], c["bootstrap"]), number(c["oracle"]), number(c["score"]))
            for c in curve
        ]
        table(("best of n", "KL", "gold (95 %)", "oracle", "score"), rows)
    _probes(figures["probes"])


def _calibration(calibration: Mapping[str, Any]) -> None:
    if not (deciles := calibration.get("deciles")):
        return
    click.echo("calibration by margin: is sigmoid(margin) the chance of being right?")
    rows = [
        (
            i,
            number(b["margin"]),
            number(b["confidence"]),
            spanned(b["right"], (b["low"], b["high"])),
            f"{b['gap']:+.3f}",
        )
        for i, b in enumerate(deciles, 1)
    ]
    table(("decile", "margin", "confidence", "right (95 %)", "gap"), rows)
    click.echo(
        f"temperature {number(calibration['temperature'])}, log loss "
        f"{number(calibration['log_loss'])} nats, rescaled "
        f"{number(calibration['log_loss_rescaled'])}"
    )


def _lengths(lengths: Mapping[str, Any]) -> None:
    click.echo(
        f"length: Spearman of score and words {_rho(lengths['score_and_words'])}, of margin and difference "
        f"{_rho(lengths['margin_and_words'])}; accuracy where chosen is longer "
        f"{number(lengths['accuracy']['chosen_longer']['accuracy'])}, shorter "
        f"{number(lengths['accuracy']['chosen_shorter']['accuracy'])}"
    )


def _rho(correlation: Mapping[str, Any]) -> str:
    return spanned(correlation["spearman"], correlation["bootstrap"], 2)


def _subsets(figures: Mapping[str, Any]) -> None:
    if "subsets" in figures:
        table(
            ("subset", "accuracy (95 %)", "pairs"),
            ((n, spanned(a["accuracy"], a["wilson"]), a["pairs"]) for n, a in figures["subsets"].items()),
        )
    if "sections" in figures:
        table(("RewardBench section", "accuracy"), ((n, number(v)) for n, v in figures["sections"].items()))
    if bench := figures.get("reward_bench_2"):
        rows = [*bench["subsets"].items(), ("average", bench["average"])]
        table(("RewardBench 2", "score"), ((name, number(value)) for name, value in rows))
        parts = ", ".join(f"{name} {number(value)}" for name, value in bench["ties"].items())
        click.echo(f"{bench['rows']} rows, {bench['missing']} left out" + (f"; Ties: {parts}" if parts else ""))
    if grid := figures.get("rm_bench"):
        table(
            ("RM-Bench", *(f"rejected {i}" for i in range(3))),
            ((f"chosen {i}", *map(number, row)) for i, row in enumerate(grid["matrix"])),
        )
        click.echo(
            ", ".join(f"{n} {number(a['accuracy'])}" for n, a in grid["levels"].items())
            + f", average {number(grid['average'])}"
        )


def _probes(probes: Mapping[str, Any]) -> None:
    rows = [
        (
            kind,
            name,
            spanned(p["change"], p["bootstrap"]),
            number(p["raised"]),
            number(p.get("rejected_overtakes")),
            p["missing"],
        )
        for kind in ("length", "hollow", "content")
        for name, p in probes.get(kind, {}).items()
    ]
    if rows:
        table(("probe", "change", "score change in stds (95 %)", "raised", "rejected overtakes", "missing"), rows)
    if batch := probes.get("batch"):
        verdict = "does not depend" if batch["invariant"] else "DEPENDS"
        click.echo(f"batch: the score {verdict} on its batch (largest difference {batch['in_stds']:.1e} stds)")
    if turns := probes.get("turns"):
        click.echo(
            "turns: no pair has several turns"
            if not turns["pairs"]
            else f"turns: accuracy on {turns['pairs']} conversations {number(turns['whole'])}, on their last turn "
            f"alone {number(turns['last_turn'])}; gain {spanned(turns['gain'], turns['bootstrap'])} at "
            f"{turns['words']['whole']:.0f} instead of {turns['words']['last_turn']:.0f} words"
        )
