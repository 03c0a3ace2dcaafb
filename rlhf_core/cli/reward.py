"""`rlhf reward`: plugins score with rewards and test them."""

from __future__ import annotations

import click

from rlhf_core.cli.groups import OpenGroup


@click.group(cls=OpenGroup, path="reward")
def reward() -> None:
    """Score completions with a reward, and test rewards."""
