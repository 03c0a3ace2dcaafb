"""`rlhf config`: plugins show, check and translate configurations."""

from __future__ import annotations

import click

from rlhf_core.cli.groups import OpenGroup


@click.group(cls=OpenGroup, path="config")
def config() -> None:
    """Show, validate, translate or document configurations."""
