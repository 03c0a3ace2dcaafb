"""The report of `rlhf tts validate` in the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlhf_core.cli import say, table


def print_report(report: Mapping[str, Any]) -> None:
    grouped = report["groups"] > 1
    rows = []
    for name, row in sorted(report["columns"].items(), key=lambda item: -abs(item[1][report["decided_by"]] or 0)):
        pooled = with_interval(row["pooled"], row["pooled_interval"])
        inside = with_interval(row["within"], row["within_interval"]) if grouped else ""
        note = "differs between groups only" if row.get("confounded") and not row["kept"] else ""
        note = note or ("hidden by the groups" if row.get("confounded") else "")
        missing = str(row["missing"]) if row["missing"] else ""
        rows.append((name, *((inside,) if grouped else ()), pooled, "kept" if row["kept"] else "", missing, note))
    table(("", *(("within groups",) if grouped else ()), "pooled", f"|rho| > {report['keep']:g}", "missing", ""), rows)
    say(f"Spearman with 95% intervals; {report['clips']} clips in {report['groups']} groups\n")
    weighting = report["weighting"]
    if weighting is None:
        say("nothing is kept: no feature here orders these clips as the ratings do")
        return
    table(
        ("kept", "weight", "fitted", "accuracy without it", ""),
        (
            (n, f"{w:+.2f}", f"{weighting['fitted_weights'][n]:+.2f}", number(a["accuracy"]), f"{a['change']:+.3f}")
            for (n, w), a in zip(weighting["weights"].items(), weighting["ablation"].values())
        ),
    )
    heldout = weighting["heldout"]
    say(f"pairs of one group in the order of their ratings: {number(weighting['accuracy'])} of {weighting['pairs']}")
    say(
        f"held out: {number(heldout['accuracy'])} with these weights, {number(heldout['reweighted_accuracy'])} with "
        f"weights fitted to the other groups ({heldout['pairs']} pairs); use {weighting['recommended']}"
    )


def number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def with_interval(value: float | None, interval: Any) -> str:
    if value is None:
        return "not defined"
    if None in interval:
        return f"{value:+.2f}"
    return f"{value:+.2f} ({interval[0]:+.2f} to {interval[1]:+.2f})"
