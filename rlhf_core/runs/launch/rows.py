"""How many rows each source of a run has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_core.plugins.context import BuildContext
from rlhf_core.plugins.entry_points import scheduler
from rlhf_core.types.errors import ComponentError, RlhfError

if TYPE_CHECKING:
    from rlhf_core.config.plan import Plan
    from rlhf_core.config.run import RunConfig
    from rlhf_core.plugins.registry import Registry


def row_kind(config: RunConfig) -> str:
    """What a trainer takes of its data: ``rows`` (prompts), ``pairs`` or ``demonstrations``."""
    if config.samples_itself:
        return "rows"
    return "pairs" if getattr(config.trainer, "feeds", None) in ("pairs", "unpaired") else "demonstrations"


def remote_sources(config: RunConfig) -> list[Any]:
    """Data sets that have a path which is not on this machine: hub ids."""
    from rlhf_core.data.settings import unfiltered

    every = [unfiltered(s.source) for s in (*config.dataset.sources, config.dataset.heldout) if s is not None]
    return [s for s in every if (path := getattr(s, "path", None)) is not None and not Path(path).expanduser().exists()]


def with_rows(plan: Plan, ctx: BuildContext) -> Plan:
    """The plan with the number of rows that each source has to train on and held out.

    A dry run downloads nothing: there, and where a trainer reads its rows in a way of its own, it says nothing.
    """
    from rlhf_core.data.datasets import Datasets

    if ctx.dry_run and remote_sources(ctx.config):
        return plan
    try:
        return replace(plan, rows=Datasets.of(ctx).sizes(row_kind(ctx.config)))
    except ComponentError:
        raise
    except RlhfError:  # the trainer names what is wrong when it reads them
        return plan


def checked_datasets(ctx: BuildContext) -> Any:
    """The ``Datasets`` of the checks before a run, where it trains on the rows that these read: prompts. A trainer that
    reads pairs or demonstrations reads them itself; what the checks have counted of prompts is not about those.
    """
    return ctx.datasets if ctx.config.samples_itself else None


def with_steps(registry: Registry, config: RunConfig, *, dry_run: bool = False) -> RunConfig:
    """The run with ``trainer.steps`` for ``trainer.epochs``, of a trainer that samples.

    Raises:
        UserError: the rows cannot be counted, or both are given.
    """
    if not config.samples_itself or getattr(config.trainer, "epochs", None) is None:
        return config
    return scheduler("epochs", "trainer.epochs")()(registry, config, dry_run=dry_run)
