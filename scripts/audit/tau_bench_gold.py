"""tau-bench: gold actions of every task, and each with one action dropped or changed, judged.

    python -m scripts.audit.tau_bench_gold --data FOLDER --published tau-bench --write docs/bench/tau_bench_gold.json
    python -m scripts.audit.tau_bench_gold --domain airline --data tau-bench --published tau-bench

Reward 1.0 is expected of the gold actions, and of a changed list only where the whole database ends the same, which is
compared here row by row and not by the suite's digest. With ``--published`` (a checkout of sierra-research/tau-bench)
results of the gold actions, and of the changed lists of the first tasks, are compared with what its functions return.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
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

Action = Mapping[str, Any]
SPLITS = {"retail": ("test", "dev", "train"), "airline": ("test",)}


def changed(action: Action, others: Sequence[str], rng: random.Random) -> Action:
    """The action with one argument changed: another identifier of its kind, a shorter list, another text."""
    arguments = deepcopy(dict(action["kwargs"]))
    if not arguments:
        return {**action, "name": rng.choice([o for o in others if o != action["name"]])}
    key = rng.choice(list(arguments))
    value = arguments[key]
    arguments[key] = value[:-1] if isinstance(value, list) else f"{value}0"
    return {**action, "kwargs": arguments}


class Published:
    """The published functions, on a copy of the database of their own.

    Args:
        root: a checkout.
        domain: retail or airline.
    """

    def __init__(self, root: Path, domain: str) -> None:
        sys.modules["tau_bench.envs.tool"] = base = types.ModuleType("tau_bench.envs.tool")
        base.Tool = object  # type: ignore[attr-defined]
        self.tools: dict[str, Callable[..., str]] = {}
        for file in sorted((root / "tau_bench/envs" / domain / "tools").glob("[a-z]*.py")):
            spec = importlib.util.spec_from_file_location(f"published_{file.stem}", file)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            own = [v for v in vars(module).values() if isinstance(v, type) and v.__module__ == module.__name__]
            self.tools[file.stem] = own[0].invoke  # type: ignore[attr-defined]

    def call(self, data: dict[str, Any], action: Action) -> str:
        """As the published environment calls them."""
        try:
            return self.tools[action["name"]](data=data, **action["kwargs"])
        except Exception as error:
            return f"Error: {error}"


class Judge:
    """Plays lists of actions.

    Args:
        folder: the domain's files.
        domain: retail or airline.
        published: what results are compared with.
    """

    def __init__(self, folder: Path, domain: str, published: Published | None) -> None:
        self.folder, self.domain = folder, domain
        self.published, self.differing = published, list[dict[str, Any]]()
        self.compared = 0

    def play(self, task: Mapping[str, Any], actions: Sequence[Action], check: bool) -> tuple[float, Store]:
        """The reward of a list of actions, and the database after it."""
        store = open_store(self.folder, self.domain)
        theirs = deepcopy(database(self.folder, self.domain)) if self.published and check else None
        for action in actions:
            result = store.call(action["name"], action["kwargs"])
            if theirs is not None and self.published is not None:
                self.compared += 1
                other = self.published.call(theirs, action)
                if other != result:
                    self.differing.append({"action": dict(action), "ours": result[:200], "theirs": other[:200]})
        return reward(task, self.folder, store, [" ".join(task["outputs"])])[0], store


def study(folder: Path, split: str, judge: Judge, say: Callable[[str], None]) -> dict[str, Any]:
    """Every task of a split."""
    counts: Counter[str] = Counter()
    unexpected: list[dict[str, Any]] = []
    tasks = read(folder, f"{judge.domain}_tasks_{split}.json")
    names = sorted({a["name"] for t in tasks for a in t["actions"]})
    for number, task in enumerate(tasks):
        value, gold = judge.play(task, task["actions"], check=True)
        counts[f"gold {value:g}"] += 1
        rng = random.Random(f"{split}/{number}")
        for n, action in enumerate(task["actions"]):
            before, after = task["actions"][:n], task["actions"][n + 1 :]
            for what, actions in (
                ("dropped", [*before, *after]),
                ("changed", [*before, changed(action, names, rng), *after]),
            ):
                value, store = judge.play(task, actions, check=what == "changed" and number < 30)
                same = store.data == gold.data
                counts[f"{what} {value:g}, database {'the same' if same else 'another'}"] += 1
                if (value == 1.0) != same:
                    unexpected.append({"task": f"{split}/{number}", "action": n, "what": what, "reward": value})
        if number % 50 == 49:
            say(f"{split}: {number + 1} of {len(tasks)}")
    return {"tasks": len(tasks), **dict(sorted(counts.items())), "unexpected": unexpected}


def main(argv: Sequence[str] | None = None) -> int:
    """Judge, print, and write if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--published", type=Path)
    parser.add_argument("--domain", choices=list(SPLITS), default="retail")
    parser.add_argument("--split", action="append", choices=SPLITS["retail"])
    parser.add_argument("--write", type=Path)
    args = parser.parse_args(argv)
    judge = Judge(args.data, args.domain, Published(args.published, args.domain) if args.published else None)
    splits = {
        s: study(args.data, s, judge, lambda t: print(t, file=sys.stderr)) for s in args.split or SPLITS[args.domain]
    }
    results = {
        "compared": judge.compared,
        "equal": judge.compared - len(judge.differing),
        "differing": judge.differing[:20],
    }
    text = json.dumps({"splits": splits, **({"results": results} if args.published else {})}, indent=1) + "\n"
    print(text)
    if args.write:
        args.write.write_text(text, encoding="utf-8")
    wrong = [s for s, r in splits.items() if r["unexpected"] or r.get("gold 1") != r["tasks"]]
    return int(bool(wrong or judge.differing))


if __name__ == "__main__":
    sys.exit(main())
