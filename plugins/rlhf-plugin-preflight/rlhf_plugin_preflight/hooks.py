"""Checks at the start of a run, and what its dry run says."""

from __future__ import annotations

from rlhf_core.hooks import hookimpl
from rlhf_core.plugins.hooks import Preflight


@hookimpl
def rlhf_preflight(event: Preflight) -> str | None:
    if event.context.dry_run:
        from rlhf_plugin_preflight.dry_run.text import describe

        return describe(event)
    from rlhf_plugin_preflight.memory.check import check_memory

    check_memory(event.context, force=event.force)
    return None
