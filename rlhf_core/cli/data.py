"""`rlhf data`: plugins check, make, filter and change data."""

from __future__ import annotations

import click

from rlhf_core.cli.groups import OpenGroup


@click.group(cls=OpenGroup, path="data")
def data() -> None:
    """Check, make and filter training data. Accepted forms: docs/data.md."""
