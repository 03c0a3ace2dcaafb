"""One run per arm and seed; means over seeds, paired differences, verdicts on claims, curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rlhf_core.config import RlhfError, UserError, did_you_mean
from rlhf_study.ablation.config import AblationConfig, Claim
from rlhf_study.ablation.curves import Curve, Interval, interval, metric_names, read_curves
from rlhf_study.ablation.plot import draw
from rlhf_study.record import Verdict
from rlhf_study.runs import Run, train
from rlhf_study.study import Study
from rlhf_study.tables import markdown

Results = Mapping[int, Mapping[str, Any]]
ConfigOf = TypeVar("ConfigOf", bound=AblationConfig)
SUMMARY, MEASURED = "summary/", "measured/"
"""Beginnings of metrics of which a run has one value."""


class Ablation(Study[ConfigOf]):
    @property
    def metrics(self) -> tuple[str, ...]:
        compared = (claim.metric for claim in self.config.claims if claim.metric)
        return tuple(dict.fromkeys((self.config.metric, *self.config.also, *compared)))

    def run(self, seed: int, folder: Path) -> dict[str, Any]:
        by_arm, failed, made = dict[str, Any](), dict[str, RlhfError](), self.prior_artifacts(seed, folder)
        for arm in self.config.arms:
            layers = (filled(layer, made) for layer in self.config.settings(arm, seed))
            try:
                run = train(folder / arm.replace("/", "_"), *layers, options=self.config.options)
            except UserError:
                raise
            except RlhfError as error:  # the other arms are trained all the same
                failed[arm] = error
                continue
            by_arm[arm] = self.figures(run)
            if not self.config.keeps_models:
                run.drop_models()
        if failed:
            raise RlhfError("; ".join(f"{arm}: {error}" for arm, error in failed.items()))
        return by_arm

    def prior_artifacts(self, seed: int, folder: Path) -> dict[str, Path]:
        """What ``@NAME`` stands for in the arms' settings: models of the runs before; a study adds its files."""
        made = self.files(seed, folder)
        for name, layers in self.config.settings_before(seed).items():
            made[name] = train(folder / "before" / name, *(filled(layer, made) for layer in layers)).final
        return made

    def files(self, seed: int, folder: Path) -> dict[str, Path]:
        """Files that a study writes first, such as pass rates."""
        return {}

    def figures(self, run: Run) -> dict[str, list[list[float]]]:
        """Metric -> steps, seconds and values."""
        curves, name = read_curves(run.folder, self.metrics) | self.points(run), self.config.metric
        if name not in curves:
            names = metric_names(run.folder)
            fix = did_you_mean(name, names) or f"metric: one of {', '.join(names)}"
            raise UserError(f"{run.folder} has no metric '{name}'", fix=fix)
        return {name: rounded(curve) for name, curve in curves.items()}

    def measured(self, run: Run) -> Mapping[str, float]:
        """Metrics that a study measures on a finished run, its model still there; called ``measured/...``."""
        return {}

    def points(self, run: Run) -> dict[str, Curve]:
        """Metrics of the run's summary and those that the study measures, as curves of one point."""
        values = {
            name: number_at(run.summary, name.split("/")[1:]) for name in self.metrics if name.startswith(SUMMARY)
        }
        values |= {f"{MEASURED}{name}": value for name, value in self.measured(run).items()}
        end = (run.summary.get("steps", 0),), (run.summary.get("seconds", 0.0),)
        return {name: Curve(*end, (value,)) for name, value in values.items() if value is not None}

    def table(self, results: Results) -> str:
        first = [] if is_point(self.config.metric) else [f"{self.config.metric}: first"]
        headers = ["arm", *first, "last" if first else self.config.metric, "seconds", *self.metrics[1:]]
        rows = [self._row(arm, results) for arm in self.config.arms]
        parts = [markdown(headers, rows), *self.ended_early(results)]
        return "\n\n".join([*parts, verdict_table(self.verdicts(results))] if self.config.claims else parts)

    def ended_early(self, results: Results) -> list[str]:
        """Runs whose last value is of an earlier step than with another seed: a monitor ended them."""
        lines: list[str] = []
        for arm in self.config.arms:
            last = {seed: of[arm][self.config.metric][0][-1] for seed, of in results.items()}
            early = {seed: step for seed, step in last.items() if step < max(last.values())}
            lines += [f"{arm}, seed {seed}: ended early, its last value is of step {n}" for seed, n in early.items()]
        return lines

    def verdicts(self, results: Results) -> list[Verdict]:
        """One for each claim: the mean difference of ``arm`` and ``other`` over seeds, with Student's interval."""
        return [self._verdict(claim, results) for claim in self.config.claims]

    def save(self, results: Results, folder: Path) -> None:
        curves = {
            arm: {seed: {name: Curve(*map(tuple, xy)) for name, xy in of[arm].items()} for seed, of in results.items()}
            for arm in self.config.arms
        }
        drawn = [name for name in (self.config.metric, *self.config.also) if not is_point(name)]
        draw(self.config.name, drawn, curves, folder / "result.svg", self.config.frontier)

    def _row(self, arm: str, results: Results) -> list[str]:
        ends = [-1] if is_point(self.config.metric) else [0, -1]
        values = [self._values(arm, self.config.metric, results, at) for at in ends]
        seconds = [of[arm][self.config.metric][1][-1] for of in results.values()]
        others = [self._values(arm, name, results) for name in self.metrics[1:]]
        return [arm, *(interval(cell).text if cell else "-" for cell in (*values, seconds, *others))]

    def _values(self, arm: str, metric: str, results: Results, at: int = -1) -> list[float]:
        return [of[arm][metric][2][at] for of in results.values() if metric in of[arm]]

    def _verdict(self, claim: Claim, results: Results) -> Verdict:
        metric = claim.metric or self.config.metric
        paired = [of for of in results.values() if all(metric in of[arm] for arm in claim.terms)]
        if not paired:
            return Verdict(claim.line, claim.says, f"{metric}: not measured", "not measured")
        difference = interval([sum(f * of[arm][metric][2][-1] for arm, f in claim.terms.items()) for of in paired])
        text = f"{metric}: {claim.text} {difference.text}"
        text += f" ({len(paired)} of {len(results)} seeds)" if len(paired) < len(results) else ""
        return Verdict(claim.line, claim.says, text, judged(claim.sign, difference))


def filled(value: Any, made: Mapping[str, Path]) -> Any:
    """Settings with paths in place of ``@NAME``."""
    if isinstance(value, Mapping):
        return {key: filled(inner, made) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [filled(inner, made) for inner in value]
    if not (isinstance(value, str) and value.startswith("@")):
        return value
    if value[1:] not in made:
        known = ", ".join(f"@{name}" for name in made) or "none; @ names what a study makes before its arms"
        raise UserError(
            f"a setting is {value}, and nothing of that name is made before the arms", fix=f"one of: {known}"
        )
    return str(made[value[1:]])


def is_point(metric: str) -> bool:
    """Whether a run has one value of it."""
    return metric.startswith((SUMMARY, MEASURED))


def number_at(value: Any, keys: Sequence[str]) -> float | None:
    """A number inside a summary, or the sum of a mapping's; None if it is not there."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    if isinstance(value, Mapping):
        value = sum(inner for inner in value.values() if isinstance(inner, int | float))
    return float(value) if isinstance(value, int | float) else None


def judged(sign: int, difference: Interval) -> str:
    """``reproduced`` or ``contradicted`` where the interval is on one side of zero."""
    if difference.low is None or difference.high is None or difference.low <= 0 <= difference.high:
        return "not resolvable here" if sign else "no difference found"
    if not sign:
        return "higher" if difference.mean > 0 else "lower"
    return "reproduced" if sign * difference.mean > 0 else "contradicted"


def verdict_table(verdicts: Sequence[Verdict]) -> str:
    return markdown(("line", "claim", "here", "verdict"), [(v.line, v.says, v.here, v.verdict) for v in verdicts])


def rounded(curve: Curve) -> list[list[float]]:
    """Steps, seconds and values."""
    return [list(curve.steps_T), [round(s, 1) for s in curve.seconds_T], [float(f"{v:.5g}") for v in curve.values_T]]
