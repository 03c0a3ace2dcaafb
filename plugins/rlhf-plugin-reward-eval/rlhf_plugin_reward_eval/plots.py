"""Pictures of a report; needs matplotlib (``pip install 'rlhf-plugin-reward-eval[plots]'``)."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_core.config import ConfigError
from rlhf_plugin_reward_eval.evaluation import Report


def check_plots(folder: Path) -> None:
    """Refuse plots that cannot be drawn, before anything is scored."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("--plots needs matplotlib", fix="pip install 'rlhf-plugin-reward-eval[plots]'")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--plots {folder} is not a folder", why=str(error.strerror), fix="name a folder") from error


def draw(report: Report, folder: Path) -> list[Path]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    files: list[Path] = []
    for name, work in (("calibration", _calibration), ("scores", _scores), ("probes", _probes), ("best_of_n", _best)):
        figure, axes = pyplot.subplots(figsize=(6, 4.5), layout="constrained")
        if work(report, axes):
            files.append(folder / f"{name}.png")
            figure.savefig(files[-1], dpi=120)
        pyplot.close(figure)
    return files


def _calibration(report: Report, axes: Any) -> bool:
    for name, result in report.rewards.items():
        bins = result["calibration"].get("deciles", [])
        right = np.array([b["right"] for b in bins])
        ends = np.abs(np.array([[b["low"], b["high"]] for b in bins]).reshape(-1, 2).T - right)
        axes.errorbar(
            [b["confidence"] for b in bins],
            right,
            yerr=ends,
            fmt="o-",
            capsize=2,
            label=f"{name}: ECE {result['calibration'].get('ece', float('nan')):.3f}",
        )
    axes.plot([0.5, 1], [0.5, 1], "k:", label="calibrated")
    axes.set(xlabel="sigmoid(|margin|)", ylabel="share ordered as labelled", title="calibration by margin decile")
    axes.legend()
    return True


def _scores(report: Report, axes: Any) -> bool:
    for name, (chosen, rejected) in report.sides.items():
        margins = (chosen - rejected)[np.isfinite(chosen - rejected)]
        spread = margins.std() or 1.0
        axes.hist(margins / spread, bins=40, histtype="step", label=f"{name}: {(margins > 0).mean():.3f} above 0")
    axes.axvline(0, color="k", linestyle=":")
    axes.set(xlabel="margin in its standard deviations", ylabel="pairs", title="chosen less rejected")
    axes.legend()
    return True


def _probes(report: Report, axes: Any) -> bool:
    count = len(report.rewards)
    names: list[str] = []
    for k, (label, result) in enumerate(report.rewards.items()):
        rows = [(n, p) for kind in ("length", "hollow", "content") for n, p in result["probes"].get(kind, {}).items()]
        names = [n for n, _ in rows] or names
        values = np.array([p["change"] for _, p in rows])
        ends = np.abs(np.array([p["bootstrap"] for _, p in rows]).reshape(-1, 2).T - values)
        axes.barh(np.arange(len(rows)) + k / (count + 1), values, height=1 / (count + 1), xerr=ends, label=label)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.axvline(0, color="k")
    axes.set(xlabel="score change, standard deviations", title="what changes the score")
    axes.legend()
    return bool(names)


def _best(report: Report, axes: Any) -> bool:
    curves = {name: result["best_of_n"] for name, result in report.rewards.items() if "best_of_n" in result}
    for name, curve in curves.items():
        axes.errorbar(
            [c["n"] for c in curve],
            [c["gold"] for c in curve],
            capsize=2,
            fmt="o-",
            label=name,
            yerr=np.abs(np.array([c["bootstrap"] for c in curve]).T - [c["gold"] for c in curve]),
        )
    if curves:
        curve = next(iter(curves.values()))
        axes.plot([c["n"] for c in curve], [c["oracle"] for c in curve], "k:", label="by the gold score itself")
        axes.set_xscale("log", base=2)
    axes.set(xlabel="n", ylabel="gold score", title="best of n by each reward")
    axes.legend()
    return bool(curves)
