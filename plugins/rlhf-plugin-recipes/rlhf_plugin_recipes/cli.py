"""`rlhf recipe`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rlhf_plugin_recipes.execute import Execution


@click.group()
def recipe() -> None:
    """Whole pipelines in one file: stages that use each other's outputs, cached by content, resumable."""


@recipe.command("list")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def list_(as_json: bool) -> None:
    """Recipes that are shipped."""
    from rlhf_core.cli import emit_json, table
    from rlhf_plugin_recipes.files import shipped
    from rlhf_plugin_recipes.read import read_recipe

    recipes = [read_recipe(file) for file in shipped().values()]
    rows = [{"name": r.name, "stages": [s.name for s in r.stages], "about": r.about} for r in recipes]
    if as_json:
        emit_json(rows)
    else:
        table(("name", "stages", "what"), [(r["name"], len(r["stages"]), str(r["about"]).split("\n")[0]) for r in rows])


@recipe.command()
@click.argument("name", metavar="NAME|FILE")
def show(name: str) -> None:
    """Print a recipe's file; `rlhf recipe show NAME > mine.yaml` begins one of your own."""
    from rlhf_plugin_recipes.files import find_recipe

    click.echo(find_recipe(name).read_text(encoding="utf-8").rstrip())


@recipe.command()
@click.argument("name", metavar="NAME|FILE")
@click.option("--set", "settings", multiple=True, metavar="a.b=c", help="vars.X=Y or stages.NAME.X=Y. Repeatable.")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Default: runs/recipes/NAME.")
@click.option("--from", "first", metavar="STAGE", help="Make this stage and all that depends on it again.")
@click.option("--only", metavar="STAGE", help="Run nothing but this stage; what it needs must be there.")
@click.option("--dry-run", is_flag=True, help="Check every stage and say what would run; run nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def run(
    name: str,
    settings: tuple[str, ...],
    out: Path | None,
    first: str | None,
    only: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Run a recipe; the same command goes on where it stopped, and makes again only what has changed.

    \b
    rlhf recipe run three_stage
    rlhf recipe run mine.yaml --set vars.steps=20 --from policy
    rlhf recipe run mine.yaml --dry-run
    """
    from rlhf_plugin_recipes.execute import Execution
    from rlhf_plugin_recipes.files import find_recipe
    from rlhf_plugin_recipes.process import locked, run_in_process
    from rlhf_plugin_recipes.read import read_recipe
    from rlhf_plugin_recipes.store import Store

    chosen = read_recipe(find_recipe(name), settings)
    for stage in filter(None, (first, only)):
        chosen.stage(stage)
    store = Store(out or Path("runs") / "recipes" / chosen.name)
    again = chosen.after(first) if first else set[str]()
    execution = Execution(chosen, store, run_in_process, lambda text: click.echo(text, err=True), again, only)
    if dry_run:
        _forecast(execution, as_json)
        return
    execution.check()
    with locked(store.root):
        _run(execution, as_json)


def _forecast(execution: Execution, as_json: bool) -> None:
    from rlhf_core.cli import emit_json, table

    rows = execution.forecast(execution.check())
    if as_json:
        emit_json([{"stage": name, "what": what} for name, what in rows])
        return
    kinds = {stage.name: stage.kind_name for stage in execution.recipe.stages}
    table(("stage", "kind", "what"), [(name, kinds[name], what) for name, what in rows])


def _run(execution: Execution, as_json: bool) -> None:
    from rlhf_core.cli import emit_json
    from rlhf_plugin_recipes.summary import print_summary, write_page, write_summary

    status, error = "completed", None
    try:
        execution.run()
    except (KeyboardInterrupt, Exception) as failure:
        status, error = "interrupted" if isinstance(failure, KeyboardInterrupt) else "failed", failure
    summary: dict[str, Any] = write_summary(execution, status)
    page = write_page(execution) if error is None else None
    if as_json:
        emit_json({**summary, "folder": str(execution.store.root), "page": None if page is None else str(page)})
    else:
        print_summary(summary, execution.store.root, page)
    if isinstance(error, KeyboardInterrupt):
        click.echo("the same command goes on from here", err=True)
    if error is not None:
        raise error
