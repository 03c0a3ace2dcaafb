"""Commands of distributions that cannot be called, and why: a name that no group takes is reported, not lost."""

from __future__ import annotations

from collections.abc import Sequence

import click

from rlhf_core.cli.groups import OpenGroup, command_entries
from rlhf_core.plugins.entry_points import Entry
from rlhf_core.types.errors import PluginError, RlhfError


def command_problem(root: click.Command, entry: Entry) -> RlhfError | None:
    """Why a command cannot be called; None if it can."""
    *groups, last = entry.name.split(".")
    ctx, group, path = click.Context(root), root, list[str]()
    try:
        for word in groups:
            inner = group.get_command(ctx, word) if isinstance(group, OpenGroup) else None
            if inner is None:
                break
            group, path = inner, [*path, word]
        if not isinstance(group, OpenGroup) or len(path) < len(groups):
            return _lost(entry, f"`rlhf {' '.join(path)}` takes no commands of plugins")
        if group.has_own(ctx, last):
            return _lost(entry, f"`rlhf {' '.join([*path, last])}` is there already and cannot be replaced")
        group.get_command(ctx, last)
    except RlhfError as error:
        return error
    return None


def lost_command(root: click.Command, words: Sequence[str]) -> RlhfError | None:
    """Why the command that was typed is not found, if an installed distribution declares it."""
    typed = [word for word in words if not word.startswith("-")]
    for entry in command_entries():
        name = entry.name.split(".")
        if len(name) > 1 and typed[: len(name)] == name:
            return command_problem(root, entry)
    return None


def _lost(entry: Entry, why: str) -> PluginError:
    return PluginError(
        f"the command `rlhf {entry.name.replace('.', ' ')}` cannot be called",
        where=f"{entry.distribution} {entry.version}, entry point {entry.name} = {entry.value}",
        why=why,
        fix="give the entry point another name, at the top or below a group",
    )
