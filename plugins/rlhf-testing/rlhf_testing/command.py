"""Conformance of commands that distributions add."""

from __future__ import annotations

import click
from click.testing import CliRunner

from rlhf_core.cli.groups import command_entries, command_problem, load
from rlhf_core.cli.main import cli
from rlhf_testing.config import light_import_problem
from rlhf_testing.report import require_of


def check_command(path: str) -> None:
    """Check a command: its entry point is installed and can be called, importing it is light, it and its options have
    a help text, and an unknown option is refused with exit code 2.

    Args:
        path: the entry point's name, with dots: ``reward.weigh`` for ``rlhf reward weigh``.
    """
    words = path.split(".")
    who = f"command `rlhf {' '.join(words)}`"
    entries = [e for e in command_entries(disabled=()) if e.name == path]
    require_of(bool(entries), who, "its entry point is installed", "no distribution declares it", "pip install -e .")
    for entry in entries:
        problem = command_problem(cli, entry)
        require_of(problem is None, who, "it can be called", str(problem))
    command = load(entries[:1], path)
    problem = light_import_problem(entries[0].point.module)
    require_of(not problem, who, "importing it is light", problem, "import inside the function")
    require_of(bool(command.help), who, "it has a help text", "its function has no docstring")
    bare = [p.name for p in command.params if isinstance(p, click.Option) and not p.help and not p.hidden]
    require_of(not bare, who, "every option has a help text", f"{bare} have none", 'help="..."')
    shown = CliRunner().invoke(cli, [*words, "--help"])
    require_of(shown.exit_code == 0, who, "--help is shown", shown.output[-300:])
    refused = CliRunner().invoke(cli, [*words, "--no-such-option-"])
    require_of(refused.exit_code == 2, who, "an unknown option is refused", f"exit code {refused.exit_code}")
