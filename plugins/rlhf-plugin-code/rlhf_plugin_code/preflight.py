"""Finds out before a run whether programs can be isolated here, and says how."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from rlhf_core.config import ConfigError

if TYPE_CHECKING:
    from rlhf_plugin_code.config import SandboxSettings


PATIENCE_S = 5.0
"""For a command to do something with an empty program."""


def announce(settings: SandboxSettings) -> None:
    """Print how programs are isolated; a sandbox is started for that once per process and kind of sandbox."""
    print(f"programs run in: {isolation(settings)}", file=sys.stderr)


def isolation(settings: SandboxSettings) -> str:
    """How programs are isolated, found out once per process and kind of sandbox by running one."""
    return _isolation(type(settings), settings.model_dump_json())


@cache
def _isolation(kind: type[SandboxSettings], settings_json: str) -> str:
    with kind.model_validate_json(settings_json).build() as sandbox:  # it runs a program before it is ready
        return sandbox.isolation


def check_command(settings: SandboxSettings, command: Sequence[str]) -> None:
    """Run a command on an empty program; it need not like it, but it must be there."""
    from rlhf_plugin_code.sandbox import CpuUnavailable, SandboxError

    with settings.build() as sandbox:
        try:
            sandbox.command(command, files={"main": ""}, timeout_s=PATIENCE_S)
        except CpuUnavailable:
            raise
        except SandboxError as error:
            raise ConfigError(
                f"programs cannot be run by {' '.join(command)}",
                where="verifier.command",
                why=error.what,
                fix="install it below /usr, or name its folder in sandbox.readable",
            ) from error
