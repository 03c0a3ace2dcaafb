"""Settings that were vetted for pocket-voice (``recipe.yaml``), as `rlhf train --config` takes them."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from rlhf_core.config import read_yaml

_RECIPE: Mapping[str, Any] = read_yaml(Path(__file__).with_name("recipe.yaml"))
BUFFERS: Mapping[str, Mapping[str, Any]] = _RECIPE["buffers"]
"""Name -> settings of iterative DPO."""


def composite() -> dict[str, Any]:
    return deepcopy(_RECIPE["reward"])


def sampling() -> dict[str, Any]:
    return deepcopy(_RECIPE["sampling"])


def trainer(name: str, iterations: int, buffer: str) -> dict[str, Any]:
    """Trainer section of ``iterative_dpo`` or ``grpo``, which has no buffer."""
    settings = deepcopy(_RECIPE[name])
    settings["steps"] *= iterations
    return {**settings, **(BUFFERS[buffer] if name == "iterative_dpo" else {}), **sampling()}
