"""`rlhf data generate agentic`: trajectories for SFT, several of each task, kept only if the task's judge agrees."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from rlhf_core.cli import context_of, open_registry
from rlhf_core.config import ConfigError, RlhfError
from rlhf_core.data import read_jsonl, write_text

CATALOGUE = {"tool_use": 8, "multi_step": 6, "failure_recovery": 3}
"""Category -> tasks: 17, as the recipe that this follows has them."""
ONE_CONVERSATION = ("zero_shot", "react", "plan_and_execute", "code_executor")
"""Agents whose trajectory is one conversation, which SFT can learn; the others rewrite their context."""


@click.command(context_settings={"show_default": True})
@click.option("--output", required=True, type=click.Path(path_type=Path), metavar="FILE", help="Rows for SFT.")
@click.option("--agent", type=click.Choice(ONE_CONVERSATION), default="react", help="Who plays.")
@click.option("--backend", default="native", metavar="B", help="What answers; scripted: the oracle.")
@click.option("--model", metavar="M", help="Of the backend.")
@click.option("--per-task", type=click.IntRange(1), default=3, help="Plays of each task.")
@click.option("--category", "categories", type=click.Choice(list(CATALOGUE)), multiple=True, help="Only these.")
@click.option("--times", type=click.IntRange(1), default=1, help="So many catalogues of 17.")
@click.option("--task-seed", type=click.IntRange(0), default=17, help="Decides the tasks.")
@click.option("--temperature", type=click.FloatRange(0), default=0.8, help="Plays differ by it.")
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), default=0, help="The same seed, the same plays.")
@click.option("--workers", type=click.IntRange(1), help="Tasks at a time; default 16 with backend native, else 4.")
@click.option("--set", "settings", multiple=True, metavar="a.b=c", help="backend.X=Y, agent_settings.X=Y. Repeatable.")
@click.option("--dry-run", is_flag=True, help="Show the tasks; nothing is played.")
def agentic(output: Path, categories: Sequence[str], dry_run: bool, **options: Any) -> None:
    """Let an agent play 17 tasks (8 tool_use, 6 multi_step, 3 failure_recovery), and keep what was right.

    The same command goes on where it stopped: plays are in FILE.plays, one evaluation per category.

    \b
    rlhf data generate agentic --output agentic.jsonl --backend scripted
    rlhf data generate agentic --output agentic.jsonl --model M --per-task 5
    """
    chosen = categories or tuple(CATALOGUE)
    if dry_run:
        for category in dict.fromkeys(chosen):
            for task in _prepared(category, options)[1]:
                click.echo(f"{task.id}: {task.messages[-1]['content']}")
        return
    played = {c: _plays(c, output, options) for c in dict.fromkeys(chosen)}
    rows: dict[str, dict[str, Any]] = {}
    for category, (plays, tools) in played.items():
        right = [p for p in plays if p["right"]]
        texts = [json.dumps([p["task"], p["trajectory"]["messages"]], sort_keys=True) for p in right]
        different = {text: row_of(p, tools) for text, p in zip(texts, right)}
        rows |= {key: row for key, row in different.items() if key not in rows}
        missing = sum(p["value"] is None for p in plays)
        tasks = len({p["task"] for p in plays})
        click.echo(
            f"{category}: {tasks} tasks, {len(plays)} plays, {len(right)} right, {len(different)} of them different"
            + (f", {missing} without an answer: the same command plays them again" if missing else "")
        )
    if not rows:
        values = [play["value"] for plays, _ in played.values() for play in plays]
        raise (RlhfError if None in values else ConfigError)(
            f"no row of agentic was made of {len(values)} plays",
            why=f"{values.count(None)} without an answer, the others not right",
            fix="take another --model or --agent, or play more often: --per-task",
        )
    write_text(output, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows.values()))
    click.echo(f"rows: {output} ({len(rows)}); rlhf train --algo sft --dataset {output} --set trainer.learn=all")


def _plays(category: str, output: Path, options: Mapping[str, Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rows of the evaluation of one category, and each task's tools."""
    from rlhf_plugin_agents.harness import evaluate

    job, tasks, ctx = _prepared(category, options)
    tools = {t.id: [dict(s) for s in t.open(0).box.specs] for t in tasks}
    plays = output.with_name(f"{output.name}.plays") / category
    folder, _ = evaluate(job, ctx, plays, options["workers"], lambda text: click.echo(f"{category}: {text}", err=True))
    return sorted(read_jsonl(folder / "rows.jsonl"), key=lambda r: (r["task"], r["trial"])), tools


def _prepared(category: str, options: Mapping[str, Any]) -> tuple[Any, Sequence[Any], Any]:
    from rlhf_core.config import parse_settings
    from rlhf_plugin_agents.backends.known import backend_of
    from rlhf_plugin_agents.harness import Job
    from rlhf_plugin_agents.suites.generated_config import AgentBenchGenerated

    sections = parse_settings(options["settings"])
    unknown = sorted(set(sections) - {"backend", "agent_settings"})
    if unknown:
        raise ConfigError(f"--set {unknown[0]}=... is not a setting here", fix="backend.X=Y or agent_settings.X=Y")
    backend = dict(sections.get("backend") or {})
    if options["model"]:
        backend["model"] = {"path": options["model"]} if options["backend"] == "native" else options["model"]
    suite = AgentBenchGenerated(
        count=CATALOGUE[category] * options["times"],
        category=(category,),
        task_seed=options["task_seed"],
        trials=options["per_task"],
        agent_settings={"temperature": options["temperature"], **dict(sections.get("agent_settings") or {})},
    )
    ctx = context_of(open_registry(), seed=options["seed"])
    job = Job(suite, suite.agent_config(options["agent"]), backend_of(options["backend"], backend), options["seed"])
    return job, suite.tasks(ctx), ctx


def row_of(play: Mapping[str, Any], tools: Mapping[str, Any]) -> dict[str, Any]:
    """A demonstration: the whole conversation, with the tools where calls are in the model's own form."""
    messages = play["trajectory"]["messages"]
    native = any(m.get("tool_calls") for m in messages)
    name = f"{play['task']}/{play['trial']}"
    return {"id": name, "messages": messages, **({"tools": tools[play["task"]]} if native else {})}
