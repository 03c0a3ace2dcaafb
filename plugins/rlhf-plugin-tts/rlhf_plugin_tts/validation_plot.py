"""The plot of `rlhf tts validate`: correlation of every feature and part, within groups and pooled."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf_core.config import ConfigError

SUFFIXES = (".png", ".svg", ".pdf")


def check_plot(path: Path) -> None:
    """Refuse what cannot be drawn, before anything is computed."""
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"--plot {path} is not a picture", fix="a name that ends in " + ", ".join(SUFFIXES))
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("--plot needs matplotlib", fix='pip install "rlhf-plugin-tts[plots]"')


def draw(report: Mapping[str, Any], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    columns = sorted(report["columns"].items(), key=lambda item: item[1][report["decided_by"]] or 0)
    kinds = ["pooled", *(["within"] if report["groups"] > 1 else [])]
    figure, axes = pyplot.subplots(figsize=(7, 1.2 + 0.32 * len(columns)))
    for number, kind in enumerate(kinds):
        for place, (_, row) in enumerate(columns):
            if row[kind] is None:
                continue
            at = place + 0.16 * (number * 2 - len(kinds) + 1)
            if None not in row[f"{kind}_interval"]:
                axes.plot(row[f"{kind}_interval"], [at, at], color=f"C{number}", alpha=0.6)
            axes.plot(row[kind], at, "o", color=f"C{number}", label=kind if place == 0 else None, markersize=4)
    axes.axvspan(-report["keep"], report["keep"], color="0.9", zorder=0)
    axes.set_yticks(range(len(columns)), [name for name, _ in columns], fontsize=8)
    axes.set_xlabel("Spearman's rho with the ratings")
    axes.set_xlim(-1, 1)
    if len(kinds) > 1:
        axes.legend(loc="lower right")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
