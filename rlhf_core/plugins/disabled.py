"""Which plugin distributions the user has switched off (``rlhf plugins disable``)."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

VARIABLE = "RLHF_DISABLE_PLUGINS"
"""Environment variable with further names, comma separated."""


def normalise(name: str) -> str:
    """Distribution name as PEP 503 spells it: ``My_Plugin`` and ``my-plugin`` are one."""
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def settings_path() -> Path:
    """Where the list is kept: ``$RLHF_HOME/plugins.json``, by default under ``~/.config/rlhf``."""
    home = os.environ.get("RLHF_HOME") or Path.home() / ".config" / "rlhf"
    return Path(home) / "plugins.json"


def disabled_distributions() -> list[str]:
    """Names switched off in the settings file or in ``RLHF_DISABLE_PLUGINS``.

    Raises:
        ConfigError: the settings file is damaged.
    """
    names = [n for n in os.environ.get(VARIABLE, "").split(",") if n.strip()]
    return sorted({*map(normalise, names), *stored_names()})


def stored_names() -> list[str]:
    """Names switched off in the settings file.

    Raises:
        ConfigError: the file is damaged.
    """
    from rlhf_core.types.errors import ConfigError

    path = settings_path()
    if not path.is_file():
        return []
    try:
        return sorted({normalise(str(name)) for name in json.loads(path.read_text()).get("disabled", [])})
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"the list of disabled plugins '{path}' cannot be read",
            why=f"{type(error).__name__}: {error}",
            fix="correct or remove that file",
        ) from error


def set_disabled(names: list[str]) -> Path:
    """Write the list and return its path."""
    path = settings_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"disabled": sorted({normalise(n) for n in names})}, indent=2) + "\n")
    return path
