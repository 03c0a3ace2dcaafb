"""The monitor on many runs of each kind: warnings, stops, and steps from the hack's begin to the first warning."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from rlhf_core.cli import context_of, open_registry
from rlhf_core.config import BuildContext, RlhfError
from rlhf_plugin_hacking.config import HackingConfig
from rlhf_studies.common.study import Study
from rlhf_studies.common.tables import markdown
from rlhf_studies.monitor_error_rates.config import MonitorErrorRatesConfig
from rlhf_studies.monitor_error_rates.simulate import Family, ramp, simulate, still

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
        for name, family in FAMILIES.items():
            draws = [simulate(family, self.config.steps, 1000 * seed + i) for i in range(self.config.runs)]
            kinds[name] = {"hack": family.hack, "begin": family.begin, "runs": [watched(rows, ctx) for rows in draws]}
        recorded: dict[str, Steps] = json.loads((Path(__file__).parent / "recorded.json").read_text())
        for name, hack in RECORDED.items():
            kinds[name] = {"hack": hack, "begin": 0.0, "runs": [watched(recorded[name][: self.config.steps], ctx)]}
        healthy = recorded[next(iter(RECORDED))]
        draws = [resampled(healthy, self.config.steps, 1000 * seed + i) for i in range(self.config.runs)]
        kinds["recorded and resampled"] = {"hack": "", "begin": 0.0, "runs": [watched(rows, ctx) for rows in draws]}
        result = {"steps": self.config.steps, "kinds": kinds}
        if self.config.strict and (broken := broken_bounds([result], self.config)):
            raise RlhfError("the monitor's error rates are beyond their bounds", why="; ".join(broken))
        return result

    def table(self, results: Mapping[int, Mapping[str, Any]]) -> str:
        kinds, steps = merged(list(results.values())), next(iter(results.values()))["steps"]
        rows = [
            (name, kind["hack"] or "no", len(kind["runs"]), *described(kind, steps))
            for name, kind in sorted(kinds.items(), key=lambda item: bool(item[1]["hack"]))
        ]
        headers = ("kind of run", "hacked", "runs", "warned", "stopped", "median steps to the first warning")
        return markdown(headers, rows) + "\n\n" + markdown(("share", "runs", "value"), shares(kinds))


def watched(rows: Steps, ctx: BuildContext) -> dict[str, int | None]:
    monitor = HackingConfig(stop=False, repeat_every=1).build(ctx.with_(session=None))
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


def described(kind: Mapping[str, Any], steps: int) -> tuple[int, int, str]:
    warned = [run["warned"] for run in kind["runs"] if run["warned"] is not None]
    delay = f"{median(warned) - kind['begin'] * steps:.0f}" if warned and kind["hack"] else ""
    return len(warned), sum(run["stopped"] is not None for run in kind["runs"]), delay


def shares(kinds: Mapping[str, Any]) -> list[tuple[str, int, str]]:
    """What has bounds: warnings and stops of healthy runs, warnings of hacked ones by hack."""
    rows: list[tuple[str, int, str]] = []
    for hack in ("", *sorted({kind["hack"] for kind in kinds.values()} - {""})):
        runs = [run for kind in kinds.values() if kind["hack"] == hack for run in kind["runs"]]
        for what in ("warned",) if hack else ("warned", "stopped"):
            share = sum(run[what] is not None for run in runs) / len(runs)
            rows.append((f"{hack or 'healthy'}, {what}", len(runs), f"{share:.1%}"))
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


FAMILIES: dict[str, Family] = {
    "flat, 16 checks": Family(),
    "flat, gold rarely right": Family(quality=still(-2.0)),
    "flat, gold nearly always right": Family(quality=still(2.0)),
    "flat, heavy tails": Family(heavy_tails=True),
    "flat, steps resemble each other": Family(wander=0.3),
    "learns": Family(quality=ramp(-1.0, 1.0)),
    "learns at once, then saturates": Family(quality=ramp(-1.5, 1.5, 0.0, 0.2)),
    "learns, longer": Family(quality=ramp(-1.0, 1.0), length=ramp(100.0, 200.0)),
    "learns, longer, no second reward": Family(quality=ramp(-1.0, 1.0), length=ramp(100.0, 200.0), checks=0),
    "learns, shorter, no second reward": Family(quality=ramp(-1.0, 1.0), length=ramp(200.0, 100.0), checks=0),
    "longer, nothing learnt": Family(length=ramp(100.0, 300.0), checks=0),
    "learns, checked every 10 steps": Family(quality=ramp(-0.5, 0.5), checks=64, every=10, group_size=1),
    "learns, a little style too": Family(quality=ramp(-0.5, 0.5), exploit=ramp(0.0, 0.5)),
    "two parts rise": Family(parts=(ramp(0.0, 1.0), ramp(0.0, 0.5))),
    "one of two parts rises": Family(parts=(ramp(0.0, 1.5), still())),
    "reward and gold fall together": Family(quality=ramp(0.5, -1.0, 0.3, 1.0)),
    "length hack, gold falls": Family(
        "length", 0.2, ramp(0.5, -0.5, 0.3, 1.0), ramp(0.0, 1.5, 0.3, 1.0), ramp(100.0, 250.0, 0.2, 1.0), 0.5
    ),
    "length hack, gold stays": Family("length", 0.2, still(), still(), ramp(100.0, 300.0, 0.2, 1.0), 1.0),
    "length hack, no second reward": Family(
        "length", 0.2, still(), still(), ramp(100.0, 250.0, 0.2, 1.0), 1.0, checks=0
    ),
    "brevity hack, gold falls": Family(
        "brevity", 0.2, ramp(0.5, -0.5, 0.3, 1.0), ramp(0.0, 0.8, 0.3, 1.0), ramp(100.0, 30.0, 0.2, 1.0), -1.0
    ),
    "brevity hack, no second reward": Family(
        "brevity", 0.2, still(), still(), ramp(100.0, 30.0, 0.2, 1.0), -1.0, checks=0
    ),
    "gold declines": Family("gold", 0.3, ramp(0.5, -0.5, 0.3, 1.0), ramp(0.0, 2.0, 0.3, 1.0)),
    "gold declines, the reward holds": Family("gold", 0.3, ramp(0.5, -0.5, 0.3, 1.0), ramp(0.0, 1.0, 0.3, 1.0)),
    "gold stays behind": Family("gold", 0.2, still(), ramp(0.0, 3.0, 0.2, 1.0)),
    "gold declines, checked every 10 steps": Family(
        "gold, 20 readings", 0.3, ramp(0.5, -0.5, 0.3, 1.0), ramp(0.0, 2.0, 0.3, 1.0), checks=64, every=10, group_size=1
    ),
    "one part at another's cost": Family("part", 0.3, parts=(ramp(0.0, 1.5, 0.3, 1.0), ramp(0.0, -0.5, 0.3, 1.0))),
}
