"""Checks at the start of a run, and what its dry run says."""

from __future__ import annotations

import logging
from typing import Any

from rlhf_core.hooks import hookimpl
from rlhf_core.plugins.hooks import Preflight

NAMED = {"model.path": "model", "dataset.sources.0.source.name": "data set", "reward.name": "reward"}


@hookimpl
def rlhf_preflight(event: Preflight) -> str | None:
    if event.settings is not None and (taken := unnamed(event.settings)):
        logging.getLogger("rlhf.preflight").warning("no config file names the %s", ", the ".join(taken))
    from rlhf_plugin_preflight.cards import check_cards

    check_cards(event.context)
    if event.context.dry_run:
        from rlhf_plugin_preflight.dry_run.text import describe

        return describe(event)
    from rlhf_plugin_preflight.memory.check import check_memory

    check_memory(event.context, force=event.force)
    return None


def unnamed(settings: Any) -> list[str]:
    """What a run with a config file takes from its algorithm or from a class. Example: ``model (pocket)``"""
    from rlhf_plugin_preflight.origin import origins

    rows = [row for row in origins(settings) if row.value is not None]
    if not any(row.origin.startswith("config ") for row in rows):
        return []
    left_open = [row for row in rows if row.origin.startswith("companion of algorithm ") or ".py:" in row.origin]
    return [f"{NAMED[row.key]} ({row.value} is used)" for row in left_open if row.key in NAMED]
