"""Finds out before a run whether programs can be shut in here, and says how."""

from __future__ import annotations

import sys
from functools import cache

from rlhf_plugin_code.config import SandboxSettings


def announce(settings: SandboxSettings) -> None:
    """Print which walls programs have; a sandbox is started for that once per process and kind of sandbox.

    Raises:
        ConfigError: there are none, and running without was not allowed.
    """
    print(f"programs run in: {walls(settings.model_dump_json())}", file=sys.stderr)


@cache
def walls(settings: str) -> str:
    """What the walls are made of, found out by running a program in them."""
    with SandboxSettings.model_validate_json(settings).build() as sandbox:
        sandbox.script("pass", timeout_s=10.0)
        return sandbox.isolation
