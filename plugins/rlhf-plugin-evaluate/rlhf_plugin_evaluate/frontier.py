"""Win rate against KL: what each policy gained, and how far it moved for it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple


class Point(NamedTuple):
    """A policy; errors are distances of the 95 % interval's ends, below and above."""

    name: str
    kl: float
    kl_error: tuple[float, float]
    rate: float
    rate_error: tuple[float, float]


def points(result: Mapping[str, Any]) -> list[Point]:
    """Policies with a KL and a win rate, by gold, else by the judge, else by the reward."""
    found: list[Point] = []
    for name, policy in result["policies"].items():
        kl, wins = policy.get("kl"), policy.get("wins", {})
        by = next((by for by in ("gold", "judge", "reward") if wins.get(by, {}).get("win_rate")), None)
        if kl and by:
            rate, centre = wins[by]["win_rate"], kl["per_sequence"]
            errors = (distances(centre, kl["per_sequence_interval"]), distances(rate["rate"], rate["interval"]))
            found.append(Point(name, centre, errors[0], rate["rate"], errors[1]))
    return found


def distances(centre: float, interval: tuple[float, float]) -> tuple[float, float]:
    return max(0.0, centre - interval[0]), max(0.0, interval[1] - centre)


def draw(result: Mapping[str, Any], file: Path) -> bool:
    """Draw the policies; False without matplotlib, or without a point."""
    try:
        import matplotlib
    except ImportError:
        return False
    found = points(result)
    if not found:
        return False
    matplotlib.use("svg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    axes.plot(0, 0.5, "ks", label="baseline")
    for point in found:
        across, up = ([[error] for error in errors] for errors in (point.kl_error, point.rate_error))
        axes.errorbar(point.kl, point.rate, xerr=across, yerr=up, marker="o", capsize=3, label=point.name)
    axes.set(xlabel="KL from the reference, nats per completion", ylabel="win rate over the baseline")
    axes.legend()
    figure.savefig(file, metadata={"Date": None})
    plt.close(figure)
    return True
