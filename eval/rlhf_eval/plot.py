"""pass@k, best@k and majority@k against k."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def draw(result: Mapping[str, Any], path: Path) -> bool:
    """Draw a report's curves; False if matplotlib is not installed."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    ticks = [int(x) for x in result["pass_at"]]
    for name, curve in curves(result).items():
        k = [int(x) for x in curve]
        axes.plot(k, [curve[str(x)]["value"] for x in k], marker="o", label=name)
        axes.fill_between(k, [curve[str(x)]["low"] for x in k], [curve[str(x)]["high"] for x in k], alpha=0.15)
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [str(x) for x in ticks])
    axes.set(xlabel="samples per prompt", ylabel="share of prompts right", ylim=(0, None))
    axes.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return True


def curves(result: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Label -> curve, in the order of the legend."""
    rows = {"pass@k": result["pass_at"]}
    rows |= {f"best@k by {name}": curve for name, curve in result.get("best_at", {}).items()}
    return rows | ({"majority@k": result["majority_at"]} if "majority_at" in result else {})
