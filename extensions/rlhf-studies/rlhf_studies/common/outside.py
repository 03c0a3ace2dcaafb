"""Models and data that are not shipped: named by a setting, or by the variables that the slow tests use."""

from __future__ import annotations

import os
from pathlib import Path

from rlhf_core.config import UserError

HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"


def model_path(setting: str | None) -> str:
    """A hub id, folder or .gguf file: the setting, else $RLHF_SMOLLM2_GGUF, else the hub's."""
    return setting or os.environ.get("RLHF_SMOLLM2_GGUF") or HUB


def data_file(setting: Path | None, *below: str) -> Path:
    """A file or folder of public data: the setting, else ``below`` in $RLHF_TEST_DATA."""
    folder = os.environ.get("RLHF_TEST_DATA")
    path = setting or (Path(folder, *below) if folder else None)
    name = "/".join(below) or "public data sets"
    if path is None:
        raise UserError(f"this study needs {name}", fix="--set data=PATH, or set RLHF_TEST_DATA to the folder above it")
    if not path.exists():
        raise UserError(f"there is no {path}", why=f"this study reads {name} there", fix="check --set data=PATH")
    return path


def other_python(setting: Path | None, package: str) -> str:
    """The interpreter of an environment that has what cannot be installed beside this toolkit."""
    if setting is None or not setting.is_file():
        raise UserError(
            f"this study needs {package} in an environment of its own",
            fix=f"--set python=VENV/bin/python with {package}",
        )
    return str(setting)
