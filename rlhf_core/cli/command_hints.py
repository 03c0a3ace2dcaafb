"""What a first word that is no command stands for: an algorithm, a command below a group, another tool's name."""

from __future__ import annotations

from collections.abc import Mapping

import click

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


def command_hint(word: str, groups: Mapping[str, click.Command | None]) -> str:
    """Example: ``rlhf train --algo sft`` for ``sft``; "" if nobody knows.

    Args:
        word: what was typed after `rlhf`.
        groups: name -> group; other commands are passed over.
    """
    from rlhf_core.plugins.registry import Registry

    if word in USUAL:
        return USUAL[word]
    if any(word == entry.name for entry in Registry().entries("trainer")):
        return f"rlhf train --algo {word}"
    groups_of = {name: group for name, group in groups.items() if isinstance(group, click.Group)}
    below = [name for name, group in groups_of.items() if word in group.list_commands(click.Context(group))]
    return " or ".join(f"rlhf {name} {word}" for name in below)
