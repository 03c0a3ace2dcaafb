"""`rlhf plugins check`."""

from __future__ import annotations

import click


@click.command()
@click.argument("distribution", required=False)
def check(distribution: str | None) -> None:
    """Import components, commands, hooks and all else that plugins declare; exit code 1 and tracebacks if one fails."""
    from importlib import metadata

    from rlhf_core.config import PluginError, Registry, did_you_mean
    from rlhf_core.plugins.entry_points import disabled_distributions, normalise, scan
    from rlhf_plugin_preflight import plugin_check

    registry, wanted = Registry(), normalise(distribution or "")
    root = click.get_current_context().find_root().command
    rows = [
        *plugin_check.check_components(registry, wanted),
        *plugin_check.check_commands(root, wanted),
        *plugin_check.check_hooks(wanted),
        *plugin_check.check_others(wanted),
    ]
    if wanted and not rows:
        known = {declared.distribution for declared in scan() if declared.point.group.startswith("rlhf")}
        why, fix = "it is not installed", did_you_mean(wanted, known) or "rlhf plugins list"
        if wanted in disabled_distributions():
            why, fix = "it is disabled", f"rlhf plugins enable {wanted}"
        elif any(metadata.distributions(name=wanted)):
            why, fix = "it declares no entry point of a group rlhf.*", "add one to pyproject.toml and install it again"
        raise PluginError(f"there is nothing to check in '{distribution}'", why=why, fix=fix)
    for row in rows:
        if row.error is None:
            click.echo(f"ok      {row.kind:10} {row.name}")
        else:
            _show(f"broken  {row.kind:10} {row.name}", row.error)
    for kind, name, spellings in plugin_check.claimed_twice(registry.entries()):
        if wanted in ("", *(s.partition("/")[0] for s in spellings)):
            click.echo(f"note    {kind:10} {name} is claimed by several distributions: write {' or '.join(spellings)}")
    raise SystemExit(1 if any(row.error for row in rows) else 0)


def _show(headline: str, error: Exception) -> None:
    import traceback

    click.echo(f"{headline}\n{error}")
    if error.__cause__ is not None:
        click.echo("".join(traceback.format_exception(error.__cause__)))
