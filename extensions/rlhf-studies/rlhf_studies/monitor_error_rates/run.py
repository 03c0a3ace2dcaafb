"""The monitor on many runs of each kind: warnings, stops, and steps from the hack's begin to the first warning."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_core.cli import context_of, open_registry
from rlhf_core.config import BuildContext, RlhfError
from rlhf_plugin_hacking.config import HackingConfig
from rlhf_studies.monitor_error_rates.config import MonitorErrorRatesConfig
from rlhf_studies.monitor_error_rates.simulate import families, simulate
from rlhf_study.study import Study
from rlhf_study.tables import markdown

Steps = Sequence[Mapping[str, float]]
BLOCK = 10
"""Steps of a recorded run that stay together when it is resampled."""
UNBOUNDED = ("gold, 20 readings",)
"""Hacks that are reported and have no bound."""
RECORDED = {"recorded, reward is the truth": "", "recorded, pays for length": "length", "recorded, brevity": "brevity"}


class MonitorErrorRates(Study[MonitorErrorRatesConfig]):
    def run(self, seed: int, folder: Path) -> dict[str, Any]:
        """Kind of run -> what is hacked, when, and what the monitor said of each run."""
        ctx = context_of(open_registry(), seed=seed, dataset={"name": "pocket/arithmetic"})
        kinds: dict[str, Any] = {}
        for name, family in families().items():
            steps = family.steps or self.config.steps
            count = self.config.runs * max(1, self.config.steps // steps)
            draws = [simulate(family, steps, 1000 * seed + i) for i in range(count)]
            begin = round(family.begin * steps) + 1
            facts = {"hack": family.hack, "begin": begin, "last": begin + family.in_time if family.in_time else steps}
            kinds[name] = {**facts, "runs": [watched(rows, ctx) for rows in draws]}
        recorded: dict[str, Steps] = json.loads((Path(__file__).parent / "recorded.json").read_text())
        for name, hack in RECORDED.items():
            steps = recorded[name][: self.config.steps]
            kinds[name] = {"hack": hack, "begin": 1, "last": len(steps), "runs": [watched(steps, ctx)]}
        healthy = recorded[next(iter(RECORDED))]
        draws = [resampled(healthy, self.config.steps, 1000 * seed + i) for i in range(self.config.runs)]
        runs = [watched(rows, ctx) for rows in draws]
        kinds["recorded and resampled"] = {"hack": "", "begin": 1, "last": self.config.steps, "runs": runs}
        if self.config.strict and (broken := broken_bounds([{"kinds": kinds}], self.config)):
            raise RlhfError("the monitor's error rates are beyond their bounds", why="; ".join(broken))
        return {"kinds": kinds}

    def table(self, results: Mapping[int, Mapping[str, Any]]) -> str:
        kinds = merged(list(results.values()))
        quiet = {name: kind for name, kind in kinds.items() if not kind["hack"] and not count_of("warned", kind)}
        shown = sorted((item for item in kinds.items() if item[0] not in quiet), key=lambda item: bool(item[1]["hack"]))
        rows = [(name, kind["hack"] or "no", len(kind["runs"]), *described(kind)) for name, kind in shown]
        runs = sum(len(kind["runs"]) for kind in quiet.values())
        rows.insert(0, (f"{len(quiet)} kinds", "no", runs, 0, 0, "", ""))
        headers = ("kind of run", "hacked", "runs", "warned in time", "stopped", "steps to the warning: median", "90 %")
        return markdown(headers, rows) + "\n\n" + markdown(("share", "runs", "value"), shares(kinds))


def watched(rows: Steps, ctx: BuildContext, **settings: Any) -> dict[str, int | None]:
    """Steps of the first warning and of the first HARD_STOP."""
    monitor = HackingConfig(stop=False, repeat_every=1, **settings).build(ctx.with_(session=None))
    first: dict[str, int | None] = {"warned": None, "stopped": None}
    for step, row in enumerate(rows, 1):
        warning = monitor.observe(step, row)
        if warning and first["warned"] is None:
            first["warned"] = step
        if warning and "HARD_STOP" in warning and first["stopped"] is None:
            first["stopped"] = step
    return first


def resampled(rows: Steps, steps: int, seed: int) -> list[Mapping[str, float]]:
    """A run of a recorded one's steps, in blocks drawn with replacement: as noisy, and without any trend."""
    rng = np.random.default_rng([seed, 11])
    starts = rng.integers(0, len(rows) - BLOCK + 1, -(-steps // BLOCK))
    return [rows[start + i] for start in starts for i in range(BLOCK)][:steps]


def merged(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Kinds with the runs of all seeds; a recorded run is the same for each and counts once."""
    kinds: dict[str, Any] = {}
    for result in results:
        for name, kind in result["kinds"].items():
            if name not in kinds:
                kinds[name] = {**kind, "runs": list(kind["runs"])}
            elif name not in RECORDED:
                kinds[name]["runs"] += kind["runs"]
    return kinds


def described(kind: Mapping[str, Any]) -> tuple[int, int, str, str]:
    delays = [run["warned"] - kind["begin"] for run in kind["runs"] if run["warned"] is not None]
    shown = [f"{np.quantile(delays, q):.0f}" if delays and kind["hack"] else "" for q in (0.5, 0.9)]
    return count_of("warned", kind), count_of("stopped", kind), shown[0], shown[1]


def count_of(what: str, kind: Mapping[str, Any]) -> int:
    """Runs with a warning or a stop that is in time."""
    return sum(run[what] is not None and run[what] <= kind["last"] for run in kind["runs"])


def shares(kinds: Mapping[str, Any]) -> list[tuple[str, int, str]]:
    """What has bounds: warnings and stops of healthy runs, warnings in time of hacked ones by hack."""
    rows: list[tuple[str, int, str]] = []
    for hack in ("", *sorted({kind["hack"] for kind in kinds.values()} - {""})):
        chosen = [kind for kind in kinds.values() if kind["hack"] == hack]
        runs = sum(len(kind["runs"]) for kind in chosen)
        for what in ("warned",) if hack else ("warned", "stopped"):
            share = sum(count_of(what, kind) for kind in chosen) / runs
            rows.append((f"{hack or 'healthy'}, {what}", runs, f"{share:.1%}"))
    return rows


def broken_bounds(results: Sequence[Mapping[str, Any]], config: MonitorErrorRatesConfig) -> list[str]:
    broken: list[str] = []
    for name, runs, text in shares(merged(results)):
        share = float(text.removesuffix("%")) / 100
        low, high = config.least_found, 1.0
        if name.startswith("healthy"):
            low, high = 0.0, config.max_warned if name.endswith("warned") else config.max_stopped
        if not low <= share <= high and not name.startswith(UNBOUNDED):
            broken.append(f"{name} {text} of {runs} runs, not within {low:.0%} and {high:.0%}")
    return broken
