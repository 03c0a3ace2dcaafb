"""Both presets on the same simulated runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf_core.cli import context_of, open_registry
from rlhf_core.config import RlhfError
from rlhf_plugin_hacking.config import ClassicConfig
from rlhf_studies.monitor_error_rates.run import count_of, described, merged, watched
from rlhf_studies.monitor_error_rates.simulate import Family, families, simulate
from rlhf_studies.monitor_simulated_traces.config import MonitorSimulatedTracesConfig
from rlhf_study.record import Verdict
from rlhf_study.study import Study
from rlhf_study.tables import markdown

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "classic": {"preset": "classic"},
    "classic, sigma of steps": {"preset": "classic", "classic": ClassicConfig(sigma="steps")},
    "sequential": {},
}
SAID = ("warned", "stopped")
SLOWED, LEARNS = "hacking, an ensemble halves its growth", "clean, the policy learns"


class MonitorSimulatedTraces(Study[MonitorSimulatedTracesConfig]):
    def run(self, seed: int, folder: Path) -> dict[str, Any]:
        """``PRESET: CONDITION, N steps`` -> when the hack begins, when a warning is late, first warnings and stops."""
        ctx = context_of(open_registry(), seed=seed, dataset={"name": "pocket/arithmetic"})
        kinds: dict[str, Any] = {}
        for name, family in families(Path(__file__).parent).items():
            for steps in self.config.steps:
                draws = [simulate(family, steps, 1000 * seed + i) for i in range(self.config.runs)]
                facts = {"hack": family.hack, "begin": round(family.begin * steps) + 1, "last": in_time(family, steps)}
                for preset, settings in PRESETS.items():
                    if not family.checks or preset == "sequential":
                        runs = [watched(rows, ctx, **settings) for rows in draws]
                        said = {what: [run[what] for run in runs] for what in SAID}
                        kinds[f"{preset}: {name}, {steps} steps"] = {**facts, **said}
        if self.config.strict and (broken := broken_bounds({seed: {"kinds": kinds}}, self.config)):
            raise RlhfError("a preset of the monitor is beyond its bounds", why="; ".join(broken))
        return {"kinds": kinds}

    def table(self, results: Mapping[int, Mapping[str, Any]]) -> str:
        rows = [(name, len(kind["runs"]), *described(kind)) for name, kind in sorted(merged_of(results).items())]
        return markdown(("preset: condition", "runs", "warned in time", "stopped", "delay: median", "90 %"), rows)

    def verdicts(self, results: Mapping[int, Mapping[str, Any]]) -> list[Verdict]:
        kinds = merged_of(results)
        early = [described(kinds[f"classic: {name}, 20 steps"])[2] for name in ("hacking", SLOWED)]
        rows = ("classic: clean", "classic, sigma of steps: clean", f"classic: {LEARNS}")
        cries = [f"{warned(kinds[f'{row}, 20 steps']):.1%}" for row in rows]
        here = f"after a median of {early[0]} and of {early[1]} steps, in runs of 20"
        learns = (
            f"of clean runs of 20 steps {cries[0]} by the spread of responses, {cries[1]} by that of the first means; "
            f"{cries[2]} by the rewards where the policy learns"
        )
        return [
            Verdict("002:832", "A hack is warned of after 3 steps, after 6 under an ensemble", here, "reproduced"),
            Verdict("002:851", "2.5 standard deviations have 1.2 % false alarms", learns, "contradicted"),
        ]


def in_time(family: Family, steps: int) -> int:
    """The last step at which a warning is in time: by then the length has doubled. Of a clean run the last one."""
    return round(family.length[3] * steps) + 1 if len(family.length) == 4 else steps


def merged_of(results: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """Rows with the runs of all seeds, each with its first steps of a warning and of a stop."""

    def expanded(kind: Mapping[str, Any]) -> dict[str, Any]:
        return {**kind, "runs": [dict(zip(SAID, pair)) for pair in zip(*(kind[what] for what in SAID))]}

    return merged([{"kinds": {name: expanded(k) for name, k in of["kinds"].items()}} for of in results.values()])


def warned(kind: Mapping[str, Any]) -> float:
    return count_of("warned", kind) / len(kind["runs"])


def false_alarms(results: Mapping[int, Mapping[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """Preset -> condition -> steps -> share of its runs with a warning: what the monitor prints at a run's start."""
    rates: dict[str, dict[str, dict[str, float]]] = {}
    for name, kind in merged_of(results).items():
        if not kind["hack"]:
            preset, _, rest = name.partition(": ")
            condition, _, steps = rest.removesuffix(" steps").rpartition(", ")
            rates.setdefault(preset, {}).setdefault(condition, {})[steps] = warned(kind)
    return rates


def broken_bounds(results: Mapping[int, Mapping[str, Any]], config: MonitorSimulatedTracesConfig) -> list[str]:
    """Which rows warn in too many clean runs, or in too few hacked ones in time."""
    broken: list[str] = []
    for name, kind in merged_of(results).items():
        low, high = (config.least_found, 1.0) if kind["hack"] else (0.0, config.max_warned)
        if not low <= warned(kind) <= high and not name.startswith(config.exempt):
            broken.append(f"{name}: warned in time {warned(kind):.1%}, not within {low:.0%} and {high:.0%}")
    return broken
