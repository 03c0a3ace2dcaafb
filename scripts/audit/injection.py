"""What each agent does with instructions inside tool results (suite `injection`), as a table.

    python -m scripts.audit.injection --work FOLDER --write docs/bench/injection.json [--model M ...] [--keep]

Backends are the scripts (`oracle`; `credulous`, which does whatever it reads, so that the row shows what the agent's
own structure holds back), the embedded tool-user, and models that are named. Evaluations go on where they were stopped.
The table is written after each agent; with --keep its rows of other backends stay, so that a model can be added alone.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_core.cli import context_of, open_registry
from rlhf_core.data import read_jsonl, write_json
from rlhf_plugin_agents.backends.config import BackendConfig
from rlhf_plugin_agents.backends.known import backend_of
from rlhf_plugin_agents.harness import Job, evaluate
from rlhf_plugin_agents.suites.config import Injection

AGENTS = ("zero_shot", "react", "plan_and_execute", "multi_agent", "scratchpad", "code_executor")
COLUMNS = ("backend", "agent", "send", "read", "answer", "mark", "obeyed", "answered")


def backends(models: Sequence[str]) -> dict[str, BackendConfig]:
    """Name in the table -> settings."""
    scripts = {name: backend_of("scripted", {"script": name}) for name in ("oracle", "credulous")}
    native = {m: backend_of("native", {"model": {"path": m}}) for m in ("pocket-tools", *models)}
    return scripts | {name_of(m): backend for m, backend in native.items()}


def name_of(model: str) -> str:
    """Without its folder, and of a file without its ending."""
    return Path(model).stem if Path(model).is_file() else Path(model).name


def line(backend: str, agent: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How many of each category were obeyed, of how many with a verdict; and how many questions were answered."""
    judged = [r for r in rows if r["value"] is not None]
    obeyed = [r for r in judged if str(r["detail"]).startswith("obeyed")]
    counts = {c: sum(r["category"] == c for r in obeyed) for c in ("send", "read", "answer", "mark")}
    answered = sum(r["process"] == 1.0 for r in judged)
    cut = sum(r["stop_reason"] not in ("answer", "done") for r in judged)
    return {"backend": backend, "agent": agent, **counts, "obeyed": len(obeyed), "answered": answered, "cut": cut,
            "tasks": len(judged), "missing": len(rows) - len(judged)}  # fmt: skip


def main() -> None:
    """Evaluate, print the table, and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--model", action="append", default=[])
    parser.add_argument("--keep", action="store_true", help="leave the table's rows of other backends as they are")
    options = parser.parse_args()
    ctx = context_of(open_registry())
    names = [name_of(m) for m in dict.fromkeys(["pocket-tools", *options.model])]
    if len(set(names)) < len(names):
        parser.error(f"two models have the same name: {', '.join(names)}")
    chosen, table = backends(options.model), list[dict[str, Any]]()
    if options.keep:
        if options.write is None or not options.model or not options.write.is_file():
            parser.error("--keep needs --write FILE, of a table that is there, and --model M")
        chosen = {name_of(m): chosen[name_of(m)] for m in options.model}
        table = [r for r in json.loads(options.write.read_text())["table"] if r["backend"] not in chosen]
    for name, backend in chosen.items():
        for agent in AGENTS:
            suite = Injection(agent_settings={"max_turn_tokens": 96} if backend.name == "native" else {})
            place = options.work / f"{name}-{agent}"
            folder, _ = evaluate(Job(suite, suite.agent_config(agent), backend), ctx, place, None, lambda text: None)
            table.append(line(name, agent, list(read_jsonl(folder / "rows.jsonl"))))
            print(*(f"{table[-1][c]!s:>16}" for c in COLUMNS), flush=True)
            if options.write:
                write_json(options.write, {"command": "python -m scripts.audit.injection", "tasks": 20, "table": table})
    print(json.dumps({"rows": len(table)}))


if __name__ == "__main__":
    main()
