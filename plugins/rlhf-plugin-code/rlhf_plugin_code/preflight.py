"""Finds out before a run whether programs can be isolated here, and says how."""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlhf_plugin_code.config import SandboxSettings


def announce(settings: SandboxSettings) -> None:
    """Print how programs are isolated; a sandbox is started for that once per process and kind of sandbox.

    Raises:
        ConfigError: there is no isolation, and running without was not allowed.
    """
    print(f"programs run in: {isolation(settings)}", file=sys.stderr)


def isolation(settings: SandboxSettings) -> str:
    """How programs are isolated, found out once per process and kind of sandbox by running one."""
    return _isolation(type(settings), settings.model_dump_json())


@cache
def _isolation(kind: type[SandboxSettings], settings_json: str) -> str:
    with kind.model_validate_json(settings_json).build() as sandbox:
        sandbox.script("pass", timeout_s=10.0)
        return sandbox.isolation
