"""A model as the run that it comes from read and wrote text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlhf_core.models import ModelConfig
from rlhf_core.models.paths import model_folder, planned_model


def planned_format(path: str, setting: str = "prompt_format") -> str:
    """How the run that a model comes from wrote prompts, or read calls (``tool_format``); ``auto`` for other models."""
    folder = Path(model_folder(path))
    return str(planned_model(folder).get(setting, "auto")) if folder.expanduser().is_dir() else "auto"


def model_as_trained(
    path: str,
    where: str,
    /,
    *,
    chat_template: str | None = None,
    prompt_format: str | None = None,
    tool_format: str | None = None,
    **more: Any,
) -> ModelConfig:
    """A model that reads prompts and writes tool calls as in the run that it comes from, unless told otherwise;
    ``more`` are further settings of it.

    Raises:
        ConfigError: no such template or format; it names ``where``.
    """
    written = prompt_format or ("auto" if chat_template else planned_format(path))
    calls = tool_format or planned_format(path, "tool_format")
    settings = {
        "path": path,
        "chat_template": chat_template,
        "prompt_format": written,
        "tool_format": calls,
        **more,
    }
    return ModelConfig.from_settings(settings, where)
