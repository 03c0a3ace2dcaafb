"""One run per arm and seed; means over seeds, paired differences, verdicts on claims, curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rlhf_core.config import RlhfError, UserError, did_you_mean
from rlhf_study.ablation.config import AblationConfig, Claim, Settings
from rlhf_study.ablation.curves import Curve, Interval, interval, metric_names, read_curves
from rlhf_study.ablation.plot import draw
from rlhf_study.record import Verdict
from rlhf_study.runs import Run, train
from rlhf_study.study import Study
from rlhf_study.tables import markdown

Results = Mapping[int, Mapping[str, Any]]
ConfigOf = TypeVar("ConfigOf", bound=AblationConfig)


class Ablation(Study[ConfigOf]):
    @property
    def metrics(self) -> tuple[str, ...]:
        compared = (claim.metric for claim in self.config.claims if claim.metric)
        return tuple(dict.fromkeys((self.config.metric, *self.config.also, *compared)))

    def run(self, seed: int, folder: Path) -> dict[str, Any]:
        by_arm, failed, inputs = dict[str, Any](), dict[str, RlhfError](), self.inputs(seed, folder)
        for arm in self.config.arms:
            layers = (*self.config.settings(arm, seed), inputs.get(arm, {}))
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

    def inputs(self, seed: int, folder: Path) -> Mapping[str, Settings]:
        """Settings of arms that need something made first, such as pass rates."""
        return {}

    def figures(self, run: Run) -> dict[str, list[list[float]]]:
        """Metric -> steps, seconds and values."""
        curves, name = read_curves(run.folder, self.metrics), self.config.metric
        if name not in curves:
            names = metric_names(run.folder)
            fix = did_you_mean(name, names) or f"metric: one of {', '.join(names)}"
            raise UserError(f"{run.folder} has no metric '{name}'", fix=fix)
        return {name: rounded(curve) for name, curve in curves.items()}

    def table(self, results: Results) -> str:
        headers = ["arm", f"{self.config.metric}: first", "last", "seconds", *self.metrics[1:]]
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
        draw(self.config.name, (self.config.metric, *self.config.also), curves, folder / "result.svg")

    def _row(self, arm: str, results: Results) -> list[str]:
        first, last = (self._values(arm, self.config.metric, results, at) for at in (0, -1))
        seconds = [of[arm][self.config.metric][1][-1] for of in results.values()]
        others = [self._values(arm, name, results) for name in self.metrics[1:]]
        return [arm, *(interval(values).text if values else "-" for values in (first, last, seconds, *others))]

    def _values(self, arm: str, metric: str, results: Results, at: int = -1) -> list[float]:
        return [of[arm][metric][2][at] for of in results.values() if metric in of[arm]]

    def _verdict(self, claim: Claim, results: Results) -> Verdict:
        metric = claim.metric or self.config.metric
        ours, theirs = (self._values(arm, metric, results) for arm in (claim.arm, claim.other))
        if not (ours and theirs):
            return Verdict(claim.line, claim.says, f"{metric}: not measured", "not measured")
        difference = interval([a - b for a, b in zip(ours, theirs, strict=True)])
        text = f"{metric}: {claim.arm} less {claim.other} {difference.text}"
        return Verdict(claim.line, claim.says, text, judged(claim.sign, difference))


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
