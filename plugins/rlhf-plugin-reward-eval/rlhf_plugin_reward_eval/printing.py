"""The report as tables for people."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import click

from rlhf_core.sdk import table
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
    """Print everything."""
    data = report.data
    click.echo(
        f"{data['pairs']} pairs of {data['prompts']} prompts ({data['split']})"
        + "".join(f", {n} {name.replace('_', ' ')}" for name, n in data["left_out"].items())
        + "\n"
    )
    table(
        ("reward", "accuracy (95 %)", "bootstrap by prompt", "ties", "missing", "ECE", "rescaled", "prefers longer"),
        (
            (
                name,
                spanned(r["accuracy"], r["wilson"]),
                f"{number(r['bootstrap'][0])} to {number(r['bootstrap'][1])}",
                r["ties"],
                sum(r["missing"].values()),
                number(r["calibration"].get("ece")),
                number(r["calibration"].get("ece_rescaled")),
                number(r["length"]["reward_prefers_longer"]),
            )
            for name, r in report.rewards.items()
        ),
    )
    lengths = next(iter(report.rewards.values()))["length"]
    click.echo(f"\nThe labels prefer the longer response in {number(lengths['labels_prefer_longer'])} of pairs.")
    for name, found in report.rewards.items():
        click.echo("")
        click.secho(name, bold=True)
        _one(found)
    if report.agreement:
        click.echo("\nagreement")
        table(
            ("rewards", "Spearman", "pairs ordered alike", "wrong together", "by chance"),
            (
                (
                    " / ".join(a["rewards"]),
                    number(a["spearman"]),
                    number(a["pairs_ordered_alike"]),
                    number(a["wrong_together"]),
                    number(a["wrong_together_by_chance"]),
                )
                for a in report.agreement
            ),
        )


def _one(found: Mapping[str, Any]) -> None:
    if deciles := found["calibration"].get("deciles"):
        click.echo("calibration by margin: is sigmoid(margin) the chance of being right?")
        table(
            ("decile", "margin", "confidence", "right (95 %)", "gap"),
            (
                (
                    i,
                    number(b["margin"]),
                    number(b["confidence"]),
                    spanned(b["right"], (b["low"], b["high"])),
                    f"{b['gap']:+.3f}",
                )
                for i, b in enumerate(deciles, 1)
            ),
        )
        click.echo(
            f"temperature {number(found['calibration']['temperature'])}, log loss "
            f"{number(found['calibration']['log_loss'])} nats, rescaled "
            f"{number(found['calibration']['log_loss_rescaled'])}"
        )
    lengths = found["length"]
    click.echo(
        f"length: Spearman of score and words {_rho(lengths['score_and_words'])}, of margin and difference "
        f"{_rho(lengths['margin_and_words'])}; accuracy where chosen is longer "
        f"{number(lengths['accuracy']['chosen_longer']['accuracy'])}, shorter "
        f"{number(lengths['accuracy']['chosen_shorter']['accuracy'])}"
    )
    _subsets(found)
    if gold := found.get("gold"):
        click.echo(
            f"gold: Spearman {_rho(gold)} over {gold['responses']} responses ({gold['missing']} missing), "
            f"{number(gold['spearman_within_prompts'])} within prompts ({gold['prompts_varied']})"
        )
    if curve := found.get("best_of_n"):
        table(
            ("best of n", "KL", "gold (95 %)", "oracle", "score"),
            (
                (c["n"], number(c["kl"]), spanned(c["gold"], c["bootstrap"]), number(c["oracle"]), number(c["score"]))
                for c in curve
            ),
        )
    _probes(found["probes"])


def _rho(found: Mapping[str, Any]) -> str:
    return spanned(found["spearman"], found["bootstrap"], 2)


def _subsets(found: Mapping[str, Any]) -> None:
    if "subsets" in found:
        table(
            ("subset", "accuracy (95 %)", "pairs"),
            ((n, spanned(a["accuracy"], a["wilson"]), a["pairs"]) for n, a in found["subsets"].items()),
        )
    if "sections" in found:
        table(("RewardBench section", "accuracy"), ((n, number(v)) for n, v in found["sections"].items()))
    if grid := found.get("rm_bench"):
        table(
            ("RM-Bench", *(f"rejected {i}" for i in range(3))),
            ((f"chosen {i}", *map(number, row)) for i, row in enumerate(grid["matrix"])),
        )
        click.echo(
            ", ".join(f"{n} {number(a['accuracy'])}" for n, a in grid["levels"].items())
            + f", average {number(grid['average'])}"
        )


def _probes(found: Mapping[str, Any]) -> None:
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
        for name, p in found.get(kind, {}).items()
    ]
    if rows:
        table(("probe", "change", "score change in stds (95 %)", "raised", "rejected overtakes", "missing"), rows)
    if batch := found.get("batch"):
        verdict = "does not depend" if batch["invariant"] else "DEPENDS"
        click.echo(f"batch: the score {verdict} on its batch (largest difference {batch['in_stds']:.1e} stds)")
    if turns := found.get("turns"):
        click.echo(
            "turns: no pair has several turns"
            if not turns["pairs"]
            else f"turns: accuracy on {turns['pairs']} conversations {number(turns['whole'])}, on their last turn "
            f"alone {number(turns['last_turn'])}; gain {spanned(turns['gain'], turns['bootstrap'])} at "
            f"{turns['words']['whole']:.0f} instead of {turns['words']['last_turn']:.0f} words"
        )
