"""`rlhf plugins new`."""

from __future__ import annotations

from pathlib import Path

import click

NEW = (
    *("loss", "advantage", "reward", "reward-model", "verifier", "trainer", "loop", "agent", "dataset", "tracker"),
    *("monitor", "rollout", "strategy", "judge", "benchmark", "hook", "command", "environment", "tool", "optimizer"),
    "algorithm",
)
"""What `plugins new` writes, in the order of the help."""


@click.command()
@click.argument("name")
@click.option("--kind", required=True, type=click.Choice(NEW), help="What it is to be.")
@click.option("--dir", "parent", type=click.Path(path_type=Path), help="Where to put the package; default here.")
@click.option("--into", type=click.Path(path_type=Path), help="Folder of a package to add it to, instead of a new one.")
def new(name: str, kind: str, parent: Path | None, into: Path | None) -> None:
    """Write a plugin package that works from the first minute, or add a component to one.

    \b
    rlhf plugins new my-loss --kind loss
    rlhf plugins new my-judge --kind judge --into ./acme
    """
    from importlib import metadata

    from rlhf_core.config import ConfigError
    from rlhf_core.plugins.entry_points import entries_of
    from rlhf_testing.scaffold.into import write_into
    from rlhf_testing.scaffold.write import look_at, names_for, write_package

    names = names_for(name)
    group = {"reward-model": "reward", "loop": "trainer"}.get(kind, kind)
    taken = [one.distribution for one in entries_of(f"rlhf.{group}") if one.name == names.component]
    if taken:
        raise ConfigError(
            f"{taken[0]} has a {group} called {names.component} already",
            why="a name that two distributions have can no longer be used alone",
            fix=f"another name, for example my-{name}",
        )
    if into is not None:
        if parent is not None:
            raise ConfigError("--into and --dir exclude each other", why="--into names the package's folder itself")
        added = write_into(name, kind, into)
        for file in (*added.files, added.test):
            click.echo(f"wrote {file}")
        for note in added.notes:
            click.echo(f"  to do: {note}")
        click.echo(f"  pip install -e {into}\n  pytest {added.test}")
        return
    if any(metadata.distributions(name=names.distribution)):
        raise ConfigError(
            f"a distribution called {names.distribution} is installed already",
            why="installing yours would replace it",
            fix=f"another name, for example my-{name}, or --into its folder",
        )
    folder = write_package(name, kind, parent or Path())
    click.echo(f"wrote {folder}\n  pip install -e '{folder}[test]'\n  pytest {folder}\n  {look_at(names, kind)}")
