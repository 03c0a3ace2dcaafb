"""`rlhf train`."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rlhf_core.cli.complete import runs as complete_runs
from rlhf_core.cli.options import open_plugins, resolve_here, resolve_options, run_options, sugar_of
from rlhf_core.types.errors import PluginError, RlhfError

if TYPE_CHECKING:
    from rlhf_core.config.plan import Plan
    from rlhf_core.runs.launch.launched import LaunchedRank


@click.command()
@run_options
@click.option("--run-dir", type=click.Path(path_type=Path), help="Where the run is kept; default runs/ALGO-TIME.")
@click.option(
    "--nproc", type=click.IntRange(1), help="Processes on this machine; default 1, or as many as a launcher started."
)
@click.option(
    "--resume",
    type=click.Path(path_type=Path),
    shell_complete=complete_runs,
    metavar="RUN",
    help="Go on with an earlier run, exactly; with --set trainer.steps=N for longer.",
)
@click.option("--dry-run", is_flag=True, help="Check models and data, say what the run would do; train nothing.")
@click.option("--force", is_flag=True, help="Start although the run cannot fit in memory.")
@click.option("--no-plugins", is_flag=True, help="Use only what rlhf-core itself ships.")
@click.option("--strict-plugins", is_flag=True, help="A failing hook ends the run instead of being counted.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON; with --dry-run the plan.")
@click.option("--debug", is_flag=True, hidden=True)
def train(
    files: tuple[str, ...],
    settings: tuple[str, ...],
    run_dir: Path | None,
    nproc: int | None,
    resume: Path | None,
    dry_run: bool,
    force: bool,
    no_plugins: bool,
    strict_plugins: bool,
    as_json: bool,
    debug: bool,
    **names: Any,
) -> None:
    """Train a model.

    \b
    rlhf train --algo grpo --reward ensemble
    rlhf train --algo sft --model ./my-model --dataset demos.jsonl
    rlhf train --config configs/pocket_grpo.yaml --set trainer.steps=20
    """
    from rlhf_core.cli.common import emit_json
    from rlhf_core.cli.progress import launch_shown, print_summary
    from rlhf_core.plugins.hooks import Preflight
    from rlhf_core.runs.launch.launched import launched_rank
    from rlhf_core.runs.launch.rows import checked_datasets
    from rlhf_core.runs.launch.run import pinned, plan_run, planned_resume, preflight, with_rows, with_steps

    has_options = bool(sugar_of(names) or files or settings or names.get("unsafe_local_execution"))
    options = (files, settings, names)
    rank = launched_rank(nproc)
    processes = nproc if rank is None else rank.world_size
    if rank is not None and rank.rank > 0:
        own_config = options if has_options and resume is None else None
        _train_rank(rank, own_config, resume or run_dir, resume is not None, not no_plugins, strict_plugins)
        return
    with contextlib.ExitStack() as stack:
        rank_0 = None if rank is None else stack.enter_context(rank.lead())
        registry, hooks = open_plugins(enabled=not no_plugins, strict=strict_plugins)
        resolved = None
        if resume is not None:
            change = partial(resolve_here, registry, *options) if has_options else None
            plan, config = planned_resume(resume, change, registry, processes)
            run_dir = resume
        else:
            resolved = resolve_options(registry, *options)
            resolved = resolved._replace(config=with_steps(registry, resolved.config, dry_run=dry_run))
            config = resolved.config.with_precision()
            config = config if dry_run else pinned(config)
            plan = plan_run(registry, hooks, config, processes or 1)
        if not as_json:
            click.echo(f"{config.trainer.name}, {config.model.path}: checking model, data and memory", err=True)
        ctx = preflight(registry, config, plan.world_size, dry_run=dry_run)
        if resume is None:
            plan = with_rows(plan, ctx)
        texts = hooks.fire("rlhf_preflight", Preflight(ctx, force, plan.rows, resolved))
        if dry_run:
            if broken := [key.partition(":")[0] for key in hooks.errors if key.endswith(":rlhf_preflight")]:
                text = f"the dry run is not complete: the check of plugin '{broken[0]}' failed"
                raise PluginError(text, fix="fix that plugin (its error is above), or disable it")
            _print_dry_run(plan, texts, as_json)
            return
        datasets = checked_datasets(ctx) if plan.world_size == 1 or rank_0 is not None else None
        del ctx  # and its rows, where others are read
        folder, summary = launch_shown(
            plan, config, registry, hooks, run_dir, datasets, resume=resume is not None, quiet=as_json, rank_0=rank_0
        )
    if as_json:
        emit_json({**summary, "run_dir": str(folder)})
    else:
        print_summary(summary, folder)


def _print_dry_run(plan: Plan, texts: Sequence[str], as_json: bool) -> None:
    """Print what plugins say of the run; without any, its components."""
    from rlhf_core.cli.common import emit_json

    if as_json:
        emit_json(plan.to_json())
        return
    if not texts:
        click.echo("dry run: the settings are in order; nothing was trained or written\n")
        for component in plan.components:
            click.echo(f"{component['kind']:<12}{component['name']}")
        click.echo("\nrlhf-plugin-preflight checks models and data too, and counts steps, tokens and memory")
    for text in texts:
        click.echo(text)


def _train_rank(
    rank: LaunchedRank,
    options: tuple[Any, ...] | None,
    run_dir: Path | None,
    resumes: bool,
    plugins: bool,
    strict: bool,
) -> None:
    """Take rank 0's plan and run it, where a launcher started this rank. Nothing is shown but errors."""
    from rlhf_core.cli.common import quiet_libraries
    from rlhf_core.runs.launch.process import run_plan
    from rlhf_core.runs.launch.process_end import sigterm_as_interrupt
    from rlhf_core.runs.launch.run import preflight

    quiet_libraries()
    registry, hooks = open_plugins(enabled=plugins, strict=strict, reports=False)
    try:
        own_config = partial(resolve_here, registry, *options) if options is not None else None
        taken = rank.take_plan(registry, partial(preflight, registry), run_dir, own_config, resume=resumes)
        if taken is not None:
            plan, config, folder = taken
            with sigterm_as_interrupt():
                run_plan(plan, config, registry, hooks, folder, resume=resumes, resume_hint=rank.resume_hint(folder))
    except RlhfError as error:
        rank.end_quietly(error)
        raise
