"""Tab completion of component names, data sets, models and runs; reads metadata and folders, imports no component."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click
from click.shell_completion import CompletionItem

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]
POCKET = ("pocket/assistant", "pocket/arithmetic", "pocket/two_digit_sums")


def components(kind: str, *more: str) -> Complete:
    """Names of the installed components of a kind, and further words."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Names that begin so."""
        from rlhf_core.plugins.registry import Registry

        names = dict.fromkeys([*more, *(entry.name for entry in Registry().entries(kind))])
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]

    return complete


def datasets(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Installed data sets; the shell adds files where none begins so."""
    named = components("dataset", *POCKET)(ctx, param, incomplete)
    return named or [CompletionItem(incomplete, type="file")]


def models(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The embedded models and runs; the shell adds folders where none begins so."""
    from rlhf_core.models.modality import embedded_names

    named = [CompletionItem(name) for name in embedded_names() if name.startswith(incomplete)]
    return [*named, *_runs(incomplete)] or [CompletionItem(incomplete, type="dir")]


def runs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Runs below ``runs/``, by name or by path; the shell adds folders where none begins so."""
    return _runs(incomplete) or [CompletionItem(incomplete, type="dir")]


def _runs(incomplete: str) -> list[CompletionItem]:
    folders = sorted(plan.parent for plan in Path("runs").glob("*/plan.json"))
    by_path = "/" in incomplete
    words = [str(folder) if by_path else folder.name for folder in folders]
    return [CompletionItem(word) for word in words if word.startswith(incomplete)]
