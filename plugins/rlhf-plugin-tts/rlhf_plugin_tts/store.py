"""Trained audio reward models on disk: ``audio_reward.json`` and ``model.safetensors``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf_core.data import verify_files
from rlhf_core.models import ModelError

META, WEIGHTS = "audio_reward.json", "model.safetensors"
REWARD_OF = {"features": "audio_feature_model", "encoder": "audio_encoder_model"}
"""What a model's vectors come from -> the reward that loads it."""


def check_folder(path: str, reward: str) -> Mapping[str, Any]:
    folder = Path(path).expanduser()
    fix = "rlhf tts train-reward --pairs FILE --output FOLDER writes one"
    if not (folder / META).is_file():
        raise ModelError(f"'{path}' holds no audio reward model", why=f"{META} is not there", fix=fix)
    try:
        meta = json.loads((folder / META).read_text())
        belongs = REWARD_OF[meta["input"]]
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"'{folder / META}' is damaged", why=str(error), fix=fix) from error
    if belongs != reward:
        raise ModelError(f"'{path}' is a model for '{belongs}', not for '{reward}'", fix=f"reward.name={belongs}")
    verify_files(folder)
    return meta
