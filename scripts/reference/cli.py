"""docs/reference/cli.md: what ``--help`` prints for every command."""

from __future__ import annotations

from collections.abc import Iterator

import click

from rlhf_core.cli.main import cli as root


def page() -> str:
    parts = [f"\n## `{name}`\n\n```text\n{text}\n```\n" for name, text in helps(root, "rlhf", None)]
    return "# Command line\n\nWhat `--help` prints.\n" + "".join(parts)


def helps(command: click.Command, path: str, parent: click.Context | None) -> Iterator[tuple[str, str]]:
    shown = command.context_settings.get("show_default")
    context = click.Context(command, info_name=path.split()[-1], parent=parent, terminal_width=100, show_default=shown)
    yield path, command.get_help(context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            if child is not None and not child.hidden:
                yield from helps(child, f"{path} {name}", context)
