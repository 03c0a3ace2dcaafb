"""`rlhf plugins`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import click

from rlhf_core.cli.common import Choice
from rlhf_core.kinds import KINDS

Check = tuple[str, str, str, Callable[[], object]]
"""Distribution, kind, name, and what raises if it is broken."""


@click.group()
def plugins() -> None:
    """List, inspect, check, create or switch off plugins."""


@plugins.command("list")
@click.option("--kind", type=Choice(KINDS), help="Only this kind.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def list_(kind: str | None, as_json: bool) -> None:
    """Components that are installed. Reads metadata only; imports no plugin."""
    from rlhf_core.cli.common import emit_json, table
    from rlhf_core.disabled import disabled_distributions
    from rlhf_core.registry import Registry, describe_all

    entries = Registry(disabled=()).entries(kind)
    off = set(disabled_distributions())
    if as_json:
        emit_json([{**row, "disabled": row["distribution"] in off} for row in describe_all(entries)])
        return
    table(
        ("kind", "name", "distribution", "version", ""),
        ((e.kind, e.name, e.distribution, e.version, "disabled" if e.distribution in off else "") for e in entries),
    )


@plugins.command()
@click.argument("name")
@click.option("--kind", type=Choice(KINDS))
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def info(name: str, kind: str | None, as_json: bool) -> None:
    """What a component is, where it comes from, and its settings."""
    from rlhf_core.cli.common import emit_json
    from rlhf_core.errors import PluginError, did_you_mean
    from rlhf_core.registry import Registry

    registry = Registry()
    matching = [e for e in registry.entries(kind) if name in (e.name, e.qualified)]
    if not matching:
        near = did_you_mean(name, {e.name for e in registry.entries(kind)})
        raise PluginError(f"no component is called '{name}'", fix=near or "rlhf plugins list")
    rows = [
        {
            **e.describe(),
            "about": (registry.load(e.kind, e.qualified).__doc__ or "").strip(),
            "settings": registry.load(e.kind, e.qualified).model_json_schema().get("properties", {}),
        }
        for e in matching
    ]
    if as_json:
        emit_json(rows)
        return
    for row in rows:
        click.echo(f"{row['kind']} {row['name']}  ({row['distribution']} {row['version']}, {row['value']})")
        click.echo(f"  {row['about']}")
        for key, field in row["settings"].items():
            default = f" = {field['default']!r}" if "default" in field else ""
            click.echo(f"  {key}{default}  {field.get('description', '')}".rstrip())


@plugins.command()
@click.argument("distribution", required=False)
def check(distribution: str | None) -> None:
    """Import every component, its package and every hook; exit code 1 and the traceback if one fails."""
    from rlhf_core.disabled import disabled_distributions, normalise
    from rlhf_core.errors import PluginError, RlhfError, did_you_mean
    from rlhf_core.hooks import hook_points, new_manager, register
    from rlhf_core.registry import Entry, Registry, import_package

    registry, manager = Registry(), new_manager()

    def look(entry: Entry) -> None:
        registry.load(entry.kind, entry.qualified)
        registry.find(entry.kind, entry.name)
        import_package(entry)

    checks: list[Check] = [(e.distribution, e.kind, e.qualified, partial(look, e)) for e in registry.entries()]
    checks += [
        (normalise(dist), "hook", f"{dist}/{point.name}", partial(register, manager, dist, point))
        for dist, point in hook_points(disabled_distributions())
    ]
    wanted, known = normalise(distribution or ""), {row[0] for row in checks}
    if wanted and wanted not in known:
        raise PluginError(
            f"no enabled distribution with plugins is called '{distribution}'",
            fix=did_you_mean(wanted, known) or "rlhf plugins list",
        )
    bad = 0
    for dist, kind, name, run in checks:
        if wanted in ("", dist):
            try:
                run()
                click.echo(f"ok      {kind:10} {name}")
            except RlhfError as error:
                bad += 1
                _show(f"broken  {kind:10} {name}", error)
    raise SystemExit(1 if bad else 0)


def _show(headline: str, error: Exception) -> None:
    import traceback

    click.echo(f"{headline}\n{error}")
    if error.__cause__ is not None:
        click.echo("".join(traceback.format_exception(error.__cause__)))


@plugins.command()
@click.argument("name")
@click.option(
    "--kind",
    required=True,
    type=Choice(
        (
            "loss",
            "advantage",
            "reward",
            "reward-model",
            "verifier",
            "trainer",
            "loop",
            "agent",
            "dataset",
            "tracker",
            "monitor",
            "command",
        )
    ),
)
@click.option("--dir", "parent", type=click.Path(path_type=Path), default=Path(), help="Where to put the package.")
def new(name: str, kind: str, parent: Path) -> None:
    """Write a plugin package that works from the first minute."""
    from importlib import metadata

    from rlhf_core.errors import ConfigError
    from rlhf_core.scaffold.names import names_for
    from rlhf_core.scaffold.write import write_package

    taken = names_for(name).distribution
    if any(metadata.distributions(name=taken)):
        raise ConfigError(
            f"a distribution called {taken} is installed already",
            why="installing yours would replace it",
            fix=f"another name, for example my-{name}",
        )
    folder = write_package(name, kind, parent)
    click.echo(f"wrote {folder}\n  pip install -e {folder}\n  pytest {folder}")
    component = names_for(name).component
    click.echo(f"  rlhf {component} --help" if kind == "command" else f"  rlhf plugins info {component}")


@plugins.command()
@click.argument("distribution")
def disable(distribution: str) -> None:
    """Ignore every component and hook of a distribution. Imports nothing."""
    from rlhf_core.disabled import set_disabled, stored_names

    path = set_disabled([*stored_names(), distribution])
    click.echo(f"{distribution} is disabled ({path})")


@plugins.command()
@click.argument("distribution")
def enable(distribution: str) -> None:
    """Undo `disable`."""
    from rlhf_core.disabled import VARIABLE, disabled_distributions, normalise, set_disabled, stored_names

    path = set_disabled([d for d in stored_names() if d != normalise(distribution)])
    if normalise(distribution) in disabled_distributions():
        click.echo(f"{distribution} is still disabled by ${VARIABLE}")
        return
    click.echo(f"{distribution} is enabled ({path})")
