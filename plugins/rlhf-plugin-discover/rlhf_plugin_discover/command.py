"""`rlhf discover`."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rlhf_core.cli import context_of, emit_json, open_registry
from rlhf_core.data import write_json, write_text

if TYPE_CHECKING:
    from rlhf_core.config import BuildContext, Registry
    from rlhf_plugin_discover.config import DiscoverConfig
    from rlhf_plugin_discover.tasks import Task


INTERRUPTED = "The search was interrupted before the model gave one."


@click.command()
@click.argument("name", metavar="TASK", required=False)
@click.option("--judge", metavar="NAME", help="The model that proposes: local, anthropic, or one of yours.")
@click.option("--config", "files", multiple=True, metavar="FILE", help="YAML file; later ones win. Repeatable.")
@click.option("--set", "settings", multiple=True, metavar="a.b=c", help="One setting, as budget.rounds=20. Repeatable.")
@click.option("--run-dir", type=click.Path(path_type=Path), help="Where it is kept; default runs/discover-TASK-TIME.")
@click.option("--resume", type=click.Path(path_type=Path), metavar="RUN", help="Go on with an earlier discovery.")
@click.option("--baseline", is_flag=True, help="The task's own search or construction instead of a model.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.0, min_open=True),
    default=60.0,
    show_default=True,
    help="Most time for the baseline's search.",
)
@click.option(
    "--check",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Judge this program and nothing else: exit code 0 valid, 1 not valid, 2 wrong input.",
)
@click.option(
    "--program",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The program to begin with, instead of the task's own.",
)
@click.option("--dry-run", is_flag=True, help="Print the resolved configuration and the first question; ask nothing.")
@click.option("--unsafe-local-execution", is_flag=True, help="Run programs without isolation if there is none.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def discover(name: str | None, run_dir: Path | None, resume: Path | None, as_json: bool, **flags: Any) -> None:
    """Look for better programs: a model proposes, a verifier judges exactly, its verdict goes back to the model.

    \b
    rlhf discover kissing --baseline
    rlhf discover kissing --check program.py
    rlhf discover kissing --judge local --program program.py
    rlhf discover kissing --judge anthropic --set budget.usd=2 --set samples=8
    rlhf discover ./my-task --judge local --set judge.model.path=./my-model
    rlhf discover --resume runs/discover-kissing-20260131-142501 --set budget.rounds=40
    """
    from rlhf_plugin_discover.folder import dated_folder, new_folder, plan_of
    from rlhf_plugin_discover.settings import chosen_config, chosen_task, options, resumed

    refuse_together(resume is not None, **flags)
    registry = open_registry()
    settings_given = options(flags["files"], flags["settings"], flags["judge"])
    starter = None
    if resume is not None:
        name, starter, settings_given = resumed(resume, name, settings_given)
    task = chosen_task(registry, name, settings_given.pop("verifier", {}))
    task = task if starter is None else replace(task, starter=starter)
    if flags["unsafe_local_execution"]:
        task = replace(task, verifier=task.verifier.allow_unsafe())
    ctx = context_of(registry)
    task.verifier.preflight(ctx)
    if flags["check"]:
        check_program(task, ctx, flags["check"], as_json)
    if flags["program"]:
        task = task.begun_with(flags["program"])
    if flags["baseline"]:
        search_baseline(task, ctx, run_dir, flags["seconds"], int(settings_given.get("seed", 0)), as_json)
        return
    config = chosen_config(registry, settings_given)
    config.judge.preflight(ctx.with_(dry_run=flags["dry_run"]))
    if flags["dry_run"]:
        emit_json(plan_of(task, config))
        return
    folder = resume or new_folder(run_dir or dated_folder(task.name))
    search_with_judge(task, str(name), config, ctx, folder, as_json)


def refuse_together(resumed: bool, **flags: Any) -> None:
    """Refuse options that would be read by none."""
    given = [f"--{name}" for name in ("check", "program", "baseline") if flags[name]]
    given += ["--resume"] * resumed
    if len(given) > 1:
        raise click.UsageError(f"{' and '.join(given)} do not go together: choose one")


def check_program(task: Task, ctx: BuildContext, file: Path, as_json: bool) -> None:
    """Print what a program is worth, and end with exit code 1 where that is not valid."""
    from rlhf_core.config import RlhfError
    from rlhf_core.rewards import Sample, Score

    verifier = make_verifier(task, ctx.registry, 1)
    try:
        score: Score = verifier.score([Sample(task.prompt, task.begun_with(file).answer_to_begin)])[0]
    finally:
        verifier.close()
    if score.value is None:
        raise RlhfError(f"'{file}' has no verdict", why=f"{score.status.value}: {score.detail}", fix="try it again")
    facts = {name: int(score.parts[name]) for name in ("num_points", "dimension") if name in score.parts}
    valid = score.parts.get("valid", float(score.value > 0))
    facts |= {} if facts else {"score": score.value}
    if as_json:
        emit_json({**facts, "validity": valid, "detail": score.detail})
    else:
        for name, value in {**facts, "validity": valid}.items():
            click.echo(f"{name}: {value}")
        if score.detail:
            click.echo(score.detail)
    raise SystemExit(0 if valid else 1)


def search_baseline(
    task: Task, ctx: BuildContext, run_dir: Path | None, seconds: float, seed: int, as_json: bool
) -> None:
    """Run the task's own search, print what it found, and end with exit code 1 where that is not valid."""
    from rlhf_plugin_discover.baseline import baseline_report, run_baseline
    from rlhf_plugin_discover.folder import dated_folder, isolation, new_folder

    folder = new_folder(run_dir) if run_dir is not None else None
    verifier = make_verifier(task, ctx.registry, 1)
    try:
        code, result = run_baseline(task, verifier, seconds, seed, lambda line: click.echo(line, err=True))
    finally:
        verifier.close()
    result["isolation"] = isolation(task)
    folder = folder or new_folder(dated_folder(f"{task.name}-baseline"))
    write_text(folder / "best.py", code)
    write_json(folder / "summary.json", result)
    write_text(folder / "report.md", baseline_report(task, result))
    if as_json:
        emit_json({**result, "run_dir": str(folder)})
    elif result["valid"]:
        click.echo(
            f"{result['best']:g} {task.settings.unit}, valid: found in {result['search_s']:.1f} s; the verifier "
            f"ran the program in {result['run_s']:.2f} s and checked it exactly in {result['check_s']:.3f} s"
        )
    else:
        click.echo(f"nothing valid: {result['detail']}")
    click.echo(f"in {folder}: best.py, report.md, summary.json", err=as_json)
    raise SystemExit(0 if result["valid"] else 1)


def search_with_judge(
    task: Task, name: str, config: DiscoverConfig, ctx: BuildContext, folder: Path, as_json: bool
) -> None:
    """Propose, verify and refine until the budget is used up; print where the results are."""
    from rlhf_plugin_discover.folder import write_plan

    write_plan(folder, task, name, config)
    with ExitStack() as stack:
        judge = config.judge.build(ctx.with_(run_dir=folder, seed=config.seed))
        stack.callback(getattr(judge, "close", lambda: None))
        verifier = make_verifier(task, ctx.registry, config.workers)
        stack.callback(verifier.close)
        ended, summary = run_rounds(task, config, judge, verifier, folder, say_on_stderr=as_json)
    if as_json:
        emit_json({**summary, "run_dir": str(folder)})
        return
    best = "nothing valid" if summary["best"] is None else f"{summary['best']:g} {summary['unit']}"
    click.echo(
        f"best: {best} (began with {summary['start']}), because {ended}. In {folder}: best.py, report.md, "
        "conversation_log.json"
    )


def run_rounds(
    task: Task, config: DiscoverConfig, judge: Any, verifier: Any, folder: Path, *, say_on_stderr: bool
) -> tuple[str, dict[str, Any]]:
    """(why the search ended, its summary); results are written even where it is interrupted."""
    from rlhf_plugin_discover.archive import Journal
    from rlhf_plugin_discover.folder import keep_best, write_results
    from rlhf_plugin_discover.loop import Discovery
    from rlhf_plugin_discover.reflect import reflection

    journal = Journal(folder)
    search = Discovery(task, config, judge, verifier, journal, lambda line: click.echo(line, err=say_on_stderr))
    search.improved = lambda verdict: keep_best(folder, verdict)
    ended = "it was interrupted"
    try:
        ended = search.run()
        words = reflection(search)
        return ended, write_results(folder, task, config, journal, search.archive, ended, words)
    except BaseException:
        if search.archive.best:
            write_results(folder, task, config, journal, search.archive, ended, INTERRUPTED)
        click.echo(f"kept in {folder}; go on with: rlhf discover --resume {folder}", err=True)
        raise
    finally:
        journal.close()


def make_verifier(task: Task, registry: Registry, workers: int) -> Any:
    """The verifier in worker processes that are killed when late."""
    from rlhf_plugin_verifiers.reward_config import VerifierRewardConfig

    return VerifierRewardConfig.model_validate(
        {"verifier": task.verifier, "workers": workers}, context={"registry": registry}
    ).build(context_of(registry))
