"""What a first word that is no command stands for: an algorithm, a command below a group, another tool's name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rlhf_core.cli.groups import OpenGroup

USUAL = {
    "help": "rlhf --help",
    "version": "rlhf --version",
    "completion": 'eval "$(_RLHF_COMPLETE=bash_source rlhf)", and docs/completion.md for other shells',
    "infer": "rlhf generate --model M, or rlhf chat M",
    "sample": "rlhf generate --model M",
    "ui": "rlhf dashboard, or rlhf report RUN",
    "webui": "rlhf dashboard, or rlhf report RUN",
    "view": "rlhf report RUN, or rlhf dashboard",
    "finetune": "rlhf train --algo sft",
    "rm": "rlhf train --algo reward_model",
}
"""What other tools call a command -> what it is here."""


def command_hint(word: str, root: OpenGroup) -> str:
    """Example: ``rlhf train --algo sft`` for ``sft``; "" if nobody knows."""
    from rlhf_core.plugins.registry import Registry

    if word in USUAL:
        return USUAL[word]
    if any(word == entry.name for entry in Registry().entries("trainer")):
        return f"rlhf train --algo {word}"
    ctx = click.Context(root)
    groups = {name: root.get_command(ctx, name) for name in root.lazy}
    below = [name for name, group in groups.items() if isinstance(group, click.Group) and word in group.commands]
    return " or ".join(f"rlhf {name} {word}" for name in below)
