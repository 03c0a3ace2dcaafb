"""`rlhf plugins`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from rlhf_core.plugins.registry import KINDS

if TYPE_CHECKING:
    from rlhf_core.plugins.entry_points import Entry

_OF_TEXT = ("chat_template", "key_hints", "tool_format", "usage_hints")
OTHERS = (*_OF_TEXT, "launcher", "modality", "model", "model_file", "schedule")
"""Groups of functions, ``rlhf.NAME``."""
LISTED = (*KINDS, *OTHERS, "command", "hook")


@click.group()
def plugins() -> None:
    """List, inspect, check, create or switch off plugins."""


@plugins.command("list")
@click.option("--kind", type=click.Choice(LISTED), help="Only this kind.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def list_(kind: str | None, as_json: bool) -> None:
    """Components, commands and hooks that are installed; with --kind what each is. Imports no plugin."""
    from rlhf_core.cli.common import emit_json, table
    from rlhf_core.cli.groups import description
    from rlhf_core.plugins.entry_points import disabled_distributions

    entries = declared(kind)
    off = set(disabled_distributions())
    if as_json:
        about = ({"disabled": e.distribution in off, "description": description(e.value)} for e in entries)
        emit_json([{**e.describe(), **more} for e, more in zip(entries, about)])
        return
    about = ["disabled" if e.distribution in off else description(e.value) if kind else "" for e in entries]
    rows = ((e.kind, e.name, e.distribution, e.version, text) for e, text in zip(entries, about))
    table(("kind", "name", "distribution", "version", "" if kind else "what each is: --kind KIND"), rows)


def declared(kind: str | None = None) -> list[Entry]:
    """What installed distributions declare, disabled ones too. Imports nothing."""
    from rlhf_core.cli.groups import command_entries
    from rlhf_core.plugins.entry_points import entries_of
    from rlhf_core.plugins.registry import Registry

    entries = Registry(disabled=()).entries(kind) if kind in (None, *KINDS) else []
    entries += [entry for name in OTHERS if kind in (None, name) for entry in entries_of(f"rlhf.{name}")]
    entries += command_entries(disabled=()) if kind in (None, "command") else []
    return entries + (entries_of("rlhf") if kind in (None, "hook") else [])


@plugins.command()
@click.argument("name")
@click.option("--kind", type=click.Choice(KINDS))
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def info(name: str, kind: str | None, as_json: bool) -> None:
    """What a component is, where it comes from, and its settings."""
    from rlhf_core.cli.common import emit_json
    from rlhf_core.plugins.registry import Registry
    from rlhf_core.types.errors import PluginError, did_you_mean

    registry = Registry()
    matching = [e for e in registry.entries(kind) if name in (e.name, e.qualified)]
    if not matching:
        near = did_you_mean(name, {e.name for e in registry.entries(kind)})
        raise PluginError(f"no component is called '{name}'", fix=near or "rlhf plugins list")
    rows: list[dict[str, Any]] = [
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
@click.argument("distribution")
def disable(distribution: str) -> None:
    """Ignore every component and hook of a distribution. Imports nothing."""
    from rlhf_core.plugins.entry_points import set_disabled, stored_names

    path = set_disabled([*stored_names(), distribution])
    click.echo(f"{distribution} is disabled ({path})")


@plugins.command()
@click.argument("distribution")
def enable(distribution: str) -> None:
    """Undo `disable`."""
    from rlhf_core.plugins.entry_points import VARIABLE, disabled_distributions, normalise, set_disabled, stored_names

    path = set_disabled([d for d in stored_names() if d != normalise(distribution)])
    if normalise(distribution) in disabled_distributions():
        click.echo(f"{distribution} is still disabled by ${VARIABLE}")
        return
    click.echo(f"{distribution} is enabled ({path})")
