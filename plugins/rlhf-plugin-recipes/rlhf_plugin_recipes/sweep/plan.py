"""A sweep's runs, each checked before the first begins."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_core.config import ConfigError, UserError
from rlhf_plugin_recipes.content import key_of, plan_parts
from rlhf_plugin_recipes.sweep.read import Point, Sweep
from rlhf_plugin_recipes.training import check_keys, dry_run


@dataclass(frozen=True)
class SweepRun:
    point: Point
    seed: int
    settings: Mapping[str, Any]
    folder: Path
    """Named after point, seed and the hash of everything that decides the run."""


def plan_runs(sweep: Sweep, root: Path) -> list[SweepRun]:
    runs: list[SweepRun] = []
    points: dict[str, str] = {}
    for point in sweep.points:
        try:
            settings = sweep.settings(point, sweep.seeds[0])
            check_keys(settings, "base")
            plan = dry_run(settings)
        except UserError as error:
            where = "; ".join(part for part in (str(sweep.file), error.where) if part)
            raise type(error)(f"{point.label}: {error.what}", where=where, why=error.why, fix=error.fix) from error
        same = points.setdefault(key_of(plan_parts(plan, {})), point.label)
        if same != point.label:
            raise ConfigError(
                f"{point.label} and {same} are the same run",
                where=str(sweep.file),
                why="every setting of theirs is equal, defaults and what base says included",
                fix="leave one of them out",
            )
        name = re.sub(r"[^A-Za-z0-9=._-]+", "_", point.label)[:80]
        for seed in sweep.seeds:
            key = key_of(plan_parts({**plan, "config": {**plan["config"], "seed": seed}}, {}))[:6]
            runs.append(SweepRun(point, seed, sweep.settings(point, seed), root / f"{name}-seed{seed}-{key}"))
    return runs
