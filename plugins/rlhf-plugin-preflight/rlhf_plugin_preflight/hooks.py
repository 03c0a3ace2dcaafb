"""Checks at the start of a run."""

from __future__ import annotations

from rlhf_core.hooks import Preflight, hookimpl


@hookimpl
def rlhf_preflight(event: Preflight) -> None:
    from rlhf_plugin_preflight.memory.check import check_memory

    check_memory(event.context, force=event.force)
