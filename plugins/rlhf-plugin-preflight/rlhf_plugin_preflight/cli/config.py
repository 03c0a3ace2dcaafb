"""`rlhf config show`, `validate` and `schema`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from rlhf_core.cli.options import resolve_options, run_options
from rlhf_core.plugins.registry import KINDS


@click.command()
@run_options
@click.option("--origin", is_flag=True, help="Where every value came from: option, file, recipe or class.")
@click.option("--json", "as_json", is_flag=True, help="JSON instead of YAML.")
def show(files: tuple[str, ...], settings: tuple[str, ...], origin: bool, as_json: bool, **names: Any) -> None:
    """Print every setting that the same options would give `rlhf train`; the output is a config file.

    \b
    rlhf config show --algo grpo --reward ensemble > my.yaml
    rlhf config show --algo grpo --origin
    """
    import yaml

    from rlhf_core.cli import emit_json
    from rlhf_core.config import Registry

    if origin:
        _show_origins(files, settings, names, as_json)
        return
    data = resolve_options(Registry(), files, settings, names).config.model_dump(mode="json")
    if data["trainer"].get("gradient_accumulation_steps") is not None:
        del data["trainer"]["micro_batch_size"]  # follows from it; a file that says both is refused
    if as_json:
        emit_json(data)
    else:
        click.echo(yaml.safe_dump(data, sort_keys=False, allow_unicode=True), nl=False)


def _show_origins(files: tuple[str, ...], settings: tuple[str, ...], names: Mapping[str, Any], as_json: bool) -> None:
    import json

    from rlhf_core.cli import emit_json
    from rlhf_core.config import Registry
    from rlhf_plugin_preflight.origin import origins

    rows = origins(resolve_options(Registry(), files, settings, names))
    if names.get("unsafe_local_execution"):
        allowed = "unsafe_local_execution"
        rows = [r._replace(origin="--unsafe-local-execution") if r.key.endswith(f".{allowed}") else r for r in rows]
    if as_json:
        emit_json({row.key: {"value": row.value, "origin": row.origin} for row in rows})
        return
    for row in rows:
        click.echo(f"{row.key} = {json.dumps(row.value, ensure_ascii=False)}   # {row.origin}")


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def validate(files: tuple[str, ...], as_json: bool) -> None:
    """Check config files, each on its own. Exit code 2 if any cannot be used."""
    from rlhf_core.cli import emit_json
    from rlhf_core.config import Registry, RlhfError
    from rlhf_core.config.plan import check_fit

    registry = Registry()
    rows: list[dict[str, Any]] = []
    for file in files:
        try:
            check_fit(resolve_options(registry, [file], (), {}).config)
            rows.append({"file": file, "ok": True})
        except RlhfError as error:
            rows.append({"file": file, "ok": False, "error": str(error)})
    if as_json:
        emit_json(rows)
    else:
        for row in rows:
            text = f"ok      {row['file']}" if row["ok"] else f"broken  {row['file']}\n{row['error']}"
            click.echo(text, err=not row["ok"])
    raise SystemExit(0 if all(row["ok"] for row in rows) else 2)


@click.command()
@click.option("--kind", type=click.Choice(KINDS), help="The schema of a component of this kind ...")
@click.option("--name", metavar="NAME", help="... and of this name; without it, all of the kind.")
def schema(kind: str | None, name: str | None) -> None:
    """Print the JSON schema of a run's configuration, or of a component's settings, with what each means."""
    from rlhf_core.cli import emit_json
    from rlhf_core.config import ConfigError, Registry, RunConfig

    if kind is None:
        if name is not None:
            raise ConfigError(
                f"--name {name} needs a --kind", fix=f"--kind KIND --name {name}; rlhf plugins info {name}"
            )
        emit_json(RunConfig.model_json_schema())
        return
    registry = Registry()
    if name is not None:
        emit_json(registry.load(kind, name).model_json_schema())
        return
    emit_json({e.qualified: registry.load(kind, e.qualified).model_json_schema() for e in registry.entries(kind)})
