"""Plays lists of actions and compares rewards, databases and results."""

from __future__ import annotations

import importlib.util
import random
import sys
import types
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from rlhf_plugin_agents.suites.tau import reward
from rlhf_plugin_agents.suites.tau_files import database, open_store, read
from rlhf_plugin_agents.suites.tau_store import Store
from rlhf_studies.common.outside import data_file
from rlhf_studies.tau_bench_gold.config import TauBenchGoldConfig
from rlhf_study.study import Study
from rlhf_study.tables import markdown

Action = Mapping[str, Any]
SPLITS = {"retail": ("test", "dev", "train"), "airline": ("test",)}
CHECKED = 30
"""Tasks of a split whose changed lists are compared with the published functions, too."""


class TauBenchGold(Study[TauBenchGoldConfig]):
    def run(self, seed: int, folder: Path) -> dict[str, Any]:
        judge = Judge(data_file(self.config.data, "tau_bench_retail"), self.config.domain, self.config.published)
        splits = {s: judge.split(s, self.config.limit, seed) for s in SPLITS[self.config.domain]}
        equal = judge.compared - len(judge.differing)
        results = {"compared": judge.compared, "equal": equal, "differing": judge.differing[:20]}
        return {"splits": splits, "results": results}

    def table(self, results: Mapping[int, Mapping[str, Any]]) -> str:
        figures = next(iter(results.values()))
        kinds = dict.fromkeys(k for row in figures["splits"].values() for k in row if k != "unexpected")
        rows = [(kind, *(row.get(kind, 0) for row in figures["splits"].values())) for kind in kinds]
        rows.append(("unexpected", *(len(row["unexpected"]) for row in figures["splits"].values())))
        line = f"Results compared with the published functions: {figures['results']['compared']}, equal: "
        return f"{markdown(('', *figures['splits']), rows)}\n\n{line}{figures['results']['equal']}"


class Judge:
    """Plays lists of actions."""

    def __init__(self, folder: Path, domain: str, published: Path | None) -> None:
        self.folder, self.domain, self.compared = folder, domain, 0
        self.differing: list[dict[str, Any]] = []
        self.theirs = {} if published is None else published_tools(published, domain)

    def split(self, split: str, limit: int | None, seed: int) -> dict[str, Any]:
        """Every task of a split: the gold actions, and each dropped and changed."""
        counts: Counter[str] = Counter()
        unexpected: list[dict[str, Any]] = []
        tasks = read(self.folder, f"{self.domain}_tasks_{split}.json")[:limit]
        names = sorted({a["name"] for t in tasks for a in t["actions"]})
        for number, task in enumerate(tasks):
            value, gold = self.play(task, task["actions"], check=True)
            counts[f"gold {value:g}"] += 1
            rng = random.Random(f"{split}/{number}" + (f"/{seed}" if seed else ""))
            for n, action in enumerate(task["actions"]):
                before, after = task["actions"][:n], task["actions"][n + 1 :]
                other = {"dropped": [], "changed": [changed(action, names, rng)]}
                for what, instead in other.items():
                    check = what == "changed" and number < CHECKED
                    value, store = self.play(task, [*before, *instead, *after], check)
                    same = store.data == gold.data
                    counts[f"{what} {value:g}, database {'the same' if same else 'another'}"] += 1
                    if (value == 1.0) != same:
                        unexpected.append({"task": f"{split}/{number}", "action": n, "what": what, "reward": value})
        return {"tasks": len(tasks), **dict(sorted(counts.items())), "unexpected": unexpected}

    def play(self, task: Mapping[str, Any], actions: Sequence[Action], check: bool) -> tuple[float, Store]:
        store, check = open_store(self.folder, self.domain), check and bool(self.theirs)
        data = deepcopy(database(self.folder, self.domain)) if check else {}
        for action in actions:
            result = store.call(action["name"], action["kwargs"])
            if check:
                self.compared += 1
                other = self.as_published(data, action)
                if other != result:
                    self.differing.append({"action": dict(action), "ours": result[:200], "theirs": other[:200]})
        return reward(task, self.folder, store, [" ".join(task["outputs"])])[0], store

    def as_published(self, data: dict[str, Any], action: Action) -> str:
        try:
            return self.theirs[action["name"]](data=data, **action["kwargs"])
        except Exception as error:
            return f"Error: {error}"


def published_tools(root: Path, domain: str) -> dict[str, Callable[..., str]]:
    sys.modules["tau_bench.envs.tool"] = base = types.ModuleType("tau_bench.envs.tool")
    base.Tool = object  # type: ignore[attr-defined]
    tools: dict[str, Callable[..., str]] = {}
    for file in sorted((root / "tau_bench/envs" / domain / "tools").glob("[a-z]*.py")):
        spec = importlib.util.spec_from_file_location(f"published_{file.stem}", file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        functions: list[Any] = [v for v in vars(module).values() if getattr(v, "__module__", "") == module.__name__]
        tools[file.stem] = next(v.invoke for v in functions if isinstance(v, type))
    return tools


def changed(action: Action, others: Sequence[str], rng: random.Random) -> Action:
    arguments = deepcopy(dict(action["kwargs"]))
    if not arguments:
        return {**action, "name": rng.choice([o for o in others if o != action["name"]])}
    key = rng.choice(list(arguments))
    value = arguments[key]
    arguments[key] = value[:-1] if isinstance(value, list) else f"{value}0"
    return {**action, "kwargs": arguments}
