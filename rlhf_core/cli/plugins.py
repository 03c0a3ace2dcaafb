"""`rlhf plugins`."""

from __future__ import annotations

from pathlib import Path

import click

from rlhf_core.kinds import KINDS


@click.group()
def plugins() -> None:
    """List, inspect, check, create or switch off plugins."""


@plugins.command("list")
@click.option("--kind", type=click.Choice(KINDS), help="Only this kind.")
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
    table(("kind", "name", "distribution", "version", ""),
          ((e.kind, e.name, e.distribution, e.version, "disabled" if e.distribution in off else "") for e in entries))


@plugins.command()
@click.argument("name")
@click.option("--kind", type=click.Choice(KINDS))
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def info(name: str, kind: str | None, as_json: bool) -> None:
    """What a component is, where it comes from, and its settings."""
    from rlhf_core.cli.common import emit_json
    from rlhf_core.errors import PluginError, did_you_mean
    from rlhf_core.registry import Registry

    registry = Registry()
    found = [e for e in registry.entries(kind) if name in (e.name, e.qualified)]
    if not found:
        near = did_you_mean(name, {e.name for e in registry.entries(kind)})
        raise PluginError(f"no component is called '{name}'", fix=near or "rlhf plugins list")
    rows = [{**e.describe(), "about": (registry.load(e.kind, e.qualified).__doc__ or "").strip(),
             "settings": registry.load(e.kind, e.qualified).model_json_schema().get("properties", {})} for e in found]
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
    """Import every component and hook, and show the traceback of what fails. Exit code 1 if any does."""
    import traceback

    from rlhf_core.errors import RlhfError
    from rlhf_core.hooks import load_hooks
    from rlhf_core.registry import Registry

    registry, bad = Registry(), 0
    for entry in registry.entries():
        if distribution not in (None, entry.distribution):
            continue
        try:
            registry.load(entry.kind, entry.qualified)
            registry.find(entry.kind, entry.name)
            click.echo(f"ok      {entry.kind:10} {entry.qualified}")
        except RlhfError as error:
            bad += 1
            click.echo(f"broken  {entry.kind:10} {entry.qualified}\n{error}")
            if error.__cause__ is not None:
                click.echo("".join(traceback.format_exception(error.__cause__)))
    load_hooks(strict=True)
    raise SystemExit(1 if bad else 0)


@plugins.command()
@click.argument("name")
@click.option("--kind", required=True, type=click.Choice(
    ("loss", "advantage", "reward", "verifier", "trainer", "agent", "dataset", "tracker", "monitor")))
@click.option("--dir", "parent", type=click.Path(path_type=Path), default=Path(), help="Where to put the package.")
def new(name: str, kind: str, parent: Path) -> None:
    """Write a plugin package that works from the first minute."""
    from rlhf_core.scaffold.names import names_for
    from rlhf_core.scaffold.write import write_package

    folder = write_package(name, kind, parent)
    click.echo(f"wrote {folder}\n  pip install -e {folder}\n  pytest {folder}")
    click.echo(f"  rlhf plugins info {names_for(name).component}")


@plugins.command()
@click.argument("distribution")
def disable(distribution: str) -> None:
    """Ignore every component and hook of a distribution. Imports nothing."""
    from rlhf_core.disabled import disabled_distributions, set_disabled

    path = set_disabled([*disabled_distributions(), distribution])
    click.echo(f"{distribution} is disabled ({path})")


@plugins.command()
@click.argument("distribution")
def enable(distribution: str) -> None:
    """Undo `disable`."""
    from rlhf_core.disabled import disabled_distributions, normalise, set_disabled

    path = set_disabled([d for d in disabled_distributions() if d != normalise(distribution)])
    click.echo(f"{distribution} is enabled ({path})")
