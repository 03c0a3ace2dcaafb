"""`rlhf fetch`. Nothing heavy is imported before it is called."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import click


@click.command()
@click.argument("address")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Arguments of the file system.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def fetch(address: str, folder: Path, settings: tuple[str, ...], as_json: bool) -> None:
    """Bring a run back from where its tracker `mirror` copied it: logs, newest checkpoint, final model.

    \b
    rlhf fetch s3://bucket/run runs/back
    rlhf train --resume runs/back
    """
    from rlhf_core.cli import check_output, emit_json
    from rlhf_core.config import ConfigError, parse_settings
    from rlhf_core.data import verify_files
    from rlhf_plugin_hub.address import Address
    from rlhf_plugin_hub.mirror import MANIFEST, fetch_run

    check_output(folder, option="FOLDER", folder=True)
    if folder.exists():
        raise ConfigError(f"FOLDER {folder} exists", fix="name a new one")
    aside = folder.with_name(f".{folder.name}.fetch")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        checkpoint = fetch_run(Address.of(address, parse_settings(settings)), aside)
        for manifest in sorted(aside.rglob(MANIFEST)):
            if not (manifest.parent.parent / MANIFEST).is_file():  # the outer one covers it
                verify_files(manifest.parent)
        aside.rename(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    facts: dict[str, Any] = {"run": str(folder), "checkpoint": checkpoint}
    emit_json(facts) if as_json else click.echo(f"{checkpoint}; go on: rlhf train --resume {folder}")
