"""Which plugin distributions the user has switched off (``rlhf plugins disable``)."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path


def normalise(name: str) -> str:
    """Distribution name as PEP 503 spells it: ``My_Plugin`` and ``my-plugin`` are one."""
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def settings_path() -> Path:
    """Where the list is kept: ``$RLHF_HOME/plugins.json``, by default under ``~/.config/rlhf``."""
    home = os.environ.get("RLHF_HOME") or Path.home() / ".config" / "rlhf"
    return Path(home) / "plugins.json"


def disabled_distributions() -> list[str]:
    """Names switched off in the settings file or in ``RLHF_DISABLE_PLUGINS`` (comma separated).

    Raises:
        ConfigError: the settings file is damaged.
    """
    names = [n for n in os.environ.get("RLHF_DISABLE_PLUGINS", "").split(",") if n]
    path = settings_path()
    if path.is_file():
        names += _stored(path)
    return sorted({normalise(n) for n in names})


def _stored(path: Path) -> list[str]:
    from rlhf_core.errors import ConfigError

    try:
        return [str(name) for name in json.loads(path.read_text()).get("disabled", [])]
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"the list of disabled plugins '{path}' cannot be read",
            why=f"{type(error).__name__}: {error}",
            fix="mend or remove that file",
        ) from error


def set_disabled(names: list[str]) -> Path:
    """Write the list and return its path."""
    path = settings_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"disabled": sorted({normalise(n) for n in names})}, indent=2) + "\n")
    return path
