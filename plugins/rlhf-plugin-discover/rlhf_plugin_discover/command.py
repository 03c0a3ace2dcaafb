"""`rlhf discover`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rlhf_core.sdk import unsafe_option

if TYPE_CHECKING:
    from rlhf_core.api import BuildContext
    from rlhf_core.sdk import Registry
    from rlhf_plugin_discover.config import DiscoverConfig
    from rlhf_plugin_discover.tasks import Task


@click.command()
@click.argument("name", metavar="TASK", required=False)
@click.option("--judge", metavar="NAME", help="The model that proposes: local, anthropic, or one of yours.")
@click.option("--config", "files", multiple=True, metavar="FILE", help="YAML file; later ones win. Repeatable.")
@click.option("--set", "settings", multiple=True, metavar="a.b=c", help="One setting, as budget.rounds=20. Repeatable.")
@click.option("--run-dir", type=click.Path(path_type=Path), help="Where it is kept; default runs/discover-TASK-TIME.")
@click.option("--resume", type=click.Path(path_type=Path), metavar="RUN", help="Go on with an earlier discovery.")
@click.option("--baseline", is_flag=True, help="The task's own search instead of a model.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.0, min_open=True),
    default=60.0,
    show_default=True,
    help="Most time for the baseline's search.",
)
@click.option("--dry-run", is_flag=True, help="Print the resolved configuration and the first question; ask nothing.")
@unsafe_option
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def discover(
    name: str | None,
    judge: str | None,
    files: tuple[str, ...],
    settings: tuple[str, ...],
    run_dir: Path | None,
    resume: Path | None,
    baseline: bool,
    seconds: float,
    dry_run: bool,
    unsafe_local_execution: bool,
    as_json: bool,
) -> None:
    """Look for better programs: a model proposes, a verifier judges exactly, its verdict goes back to the model.

    \b
    rlhf discover kissing --baseline
    rlhf discover kissing --judge anthropic --set budget.usd=2 --set samples=8
    rlhf discover ./my-task --judge local --set judge.model.path=./my-model
    rlhf discover --resume runs/discover-kissing-20260131-142501 --set budget.rounds=40
    """
    from rlhf_core.sdk import allow_unsafe, context_of, emit_json, open_registry, set_up_logging

    set_up_logging()
    registry = open_registry()
    said = options(files, settings, judge)
    if resume is not None:
        name, said = resumed(resume, name, said)
    task = chosen_task(registry, name, said.pop("verifier", {}))
    if unsafe_local_execution:
        task = replace(task, verifier=allow_unsafe(task.verifier))
    ctx = context_of(registry)
    task.verifier.preflight(ctx)
    if baseline:
        _baseline(task, ctx, run_dir, seconds, int(said.get("seed", 0)), as_json)
        return
    config = chosen_config(registry, said)
    config.judge.preflight(ctx.with_(dry_run=dry_run))
    if dry_run:
        emit_json(
            {
                "task": task.name,
                "isolation": isolation(task),
                "config": config.model_dump(mode="json"),
                "verifier": task.verifier.model_dump(mode="json"),
                "prompt": task.question,
            }
        )
        return
    _discover(task, str(name), config, ctx, resume or run_dir, resume is not None, as_json)


def options(files: Sequence[str], settings: Sequence[str], judge: str | None) -> dict[str, Any]:
    """Configuration that the options stand for; ``--set`` wins over ``--judge``, that over files."""
    from rlhf_core.sdk import merge_settings, parse_settings, read_yaml

    said: dict[str, Any] = {}
    for file in files:
        said = merge_settings(said, named(read_yaml(file)))
    said = merge_settings(said, {"judge": {"name": judge}} if judge else {})
    return merge_settings(said, named(parse_settings(settings)))


def named(said: Mapping[str, Any]) -> dict[str, Any]:
    """``judge: NAME`` is short for ``judge: {name: NAME}``, and so is ``verifier``."""
    return {k: {"name": v} if k in ("judge", "verifier") and isinstance(v, str) else v for k, v in said.items()}


def resumed(folder: Path, name: str | None, said: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Task and configuration of an earlier discovery, with what is said now on top.

    Raises:
        ConfigError: there is none, or another task is named.
    """
    import json

    from rlhf_core.api import ConfigError
    from rlhf_core.sdk import merge_settings
    from rlhf_plugin_discover.folder import PLAN

    try:
        plan = json.loads((folder / PLAN).read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"'{folder}' holds no discovery", why=str(error), fix="name the folder of an earlier one"
        ) from error
    if name not in (None, plan["task"]):
        raise ConfigError(f"'{folder}' looks for '{plan['task']}', not '{name}'", fix="leave the task out")
    return plan["task"], merge_settings({**plan["config"], "verifier": plan["verifier"]}, said)


def chosen_task(registry: Registry, name: str | None, verifier: Mapping[str, Any]) -> Task:
    """The task.

    Raises:
        ConfigError: none is named, or it cannot be used.
    """
    from rlhf_core.api import ConfigError
    from rlhf_plugin_discover.tasks import load_task, shipped

    if name is None:
        raise ConfigError(
            "no task is named",
            why=f"shipped: {', '.join(shipped())}",
            fix="rlhf discover kissing ..., or a folder with task.yaml and prompt.md",
        )
    return load_task(name, registry, verifier)


def chosen_config(registry: Registry, said: Mapping[str, Any]) -> DiscoverConfig:
    """The configuration.

    Raises:
        ConfigError: no judge, or an unusable key or value.
    """
    from pydantic import ValidationError

    from rlhf_core.api import ConfigError
    from rlhf_core.sdk import explain_invalid
    from rlhf_plugin_discover.config import DiscoverConfig

    if "name" not in (said.get("judge") or {}):
        known = ", ".join(sorted({e.name for e in registry.entries("judge")})) or "none installed"
        raise ConfigError(
            "no judge is named: who is to propose?",
            why=f"judges: {known}",
            fix="--judge NAME (pip install rlhf-plugin-judge brings local and anthropic), or --baseline",
        )
    try:
        return DiscoverConfig.model_validate(dict(said), context={"registry": registry})
    except ValidationError as error:
        raise explain_invalid(error, DiscoverConfig) from error


def isolation(task: Task) -> str:
    """Which walls programs run in; "" where the verifier runs none."""
    return task.verifier.conditions().get("isolation", "")


def court(task: Task, registry: Registry, workers: int) -> Any:
    """The verifier in processes that are killed when late."""
    from rlhf_core.api import VerifierRewardConfig
    from rlhf_core.sdk import context_of

    return VerifierRewardConfig.model_validate(
        {"verifier": task.verifier, "workers": workers}, context={"registry": registry}
    ).build(context_of(registry))


def _baseline(task: Task, ctx: BuildContext, run_dir: Path | None, seconds: float, seed: int, as_json: bool) -> None:
    from rlhf_core.sdk import emit_json, write_json, write_text
    from rlhf_plugin_discover.baseline import run_baseline
    from rlhf_plugin_discover.folder import new_folder

    folder = new_folder(run_dir) if run_dir is not None else None
    verifier = court(task, ctx.registry, 1)
    try:
        code, found = run_baseline(task, verifier, seconds, seed, lambda line: click.echo(line, err=True))
    finally:
        verifier.close()
    found["isolation"] = isolation(task)
    if folder is not None:
        write_text(folder / "best.py", code)
        write_json(folder / "summary.json", found)
    if as_json:
        emit_json(found)
    elif found["valid"]:
        click.echo(
            f"{found['best']:g} {task.settings.unit}, valid: found in {found['search_s']:.1f} s; the verifier "
            f"ran the program in {found['run_s']:.2f} s and checked it exactly in {found['check_s']:.3f} s"
        )
    else:
        click.echo(f"nothing valid: {found['detail']}")
    raise SystemExit(0 if found["valid"] else 1)


def _discover(
    task: Task, name: str, config: DiscoverConfig, ctx: BuildContext, run_dir: Path | None, resume: bool, as_json: bool
) -> None:
    from rlhf_core.sdk import default_run_dir, emit_json, quiet_libraries
    from rlhf_plugin_discover.archive import Journal
    from rlhf_plugin_discover.folder import keep_best, new_folder, write_plan, write_results
    from rlhf_plugin_discover.loop import Discovery

    folder = run_dir or default_run_dir(f"discover-{task.name}")
    if not resume:
        new_folder(folder)
    walls = isolation(task)
    write_plan(folder, task, name, config, walls)
    quiet_libraries()
    judge = config.judge.build(ctx.with_(run_dir=folder, seed=config.seed))
    verifier = court(task, ctx.registry, config.workers)
    journal = Journal(folder)
    search = Discovery(task, config, judge, verifier, journal, lambda line: click.echo(line, err=as_json))
    search.improved = lambda verdict: keep_best(folder, verdict)
    try:
        ended = search.run()
        summary = write_results(folder, task, journal, search.archive, walls, ended)
    except BaseException:
        if search.archive.best:
            write_results(folder, task, journal, search.archive, walls, "it was interrupted")
        click.echo(f"kept in {folder}; go on with: rlhf discover --resume {folder}", err=True)
        raise
    finally:
        journal.close()
        for part in (verifier, judge):
            if callable(close := getattr(part, "close", None)):
                close()
    if as_json:
        emit_json({**summary, "run_dir": str(folder)})
    else:
        best = "nothing valid" if summary["best"] is None else f"{summary['best']:g} {summary['unit']}"
        click.echo(
            f"best: {best} (began with {summary['start']}), because {ended}. In {folder}: best.py, report.md, "
            "conversation_log.json"
        )
