"""What ``modality.json`` of a codec voice says: which tokens are codes, and how a prompt is written."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import Field, ValidationError, model_validator

from rlhf_core.config import Config
from rlhf_core.models import ModelError

NAME = "codec-voice"
MODALITY_FILE = "modality.json"


class CodecVoiceDescription(Config):
    """How a language model's tokens are codes of a codec."""

    modality: str = NAME
    codec: str = "codec"
    """Folder of the codec, inside the model's."""
    token: str | None = None
    """Name of the token of code n, such as ``<|s_{}|>``."""
    first: int | None = Field(default=None, ge=0)
    """Id of the token of code 0, in place of names; the others follow."""
    codebooks: int = Field(default=1, ge=1)
    """Codes of a frame, one token each: the n-th code of codebook k is number ``k * size + n``."""
    prompt: str = "{text}"
    """What the policy is given: ``{text}`` is what is said, ``{voice}`` the description of the voice. Names of control
    tokens in it are those tokens."""
    voice: str = ""
    """The description of prompts that have none; without it, such prompts are refused if ``prompt`` has ``{voice}``."""

    @model_validator(mode="after")
    def _check(self) -> CodecVoiceDescription:
        if (self.token is None) == (self.first is None):
            raise ValueError("either token or first says which tokens are codes")
        if self.token is not None and self.token.count("{}") != 1:
            raise ValueError(f"token {self.token!r} must hold {{}} once, where the code's number stands")
        if self.prompt.count("{text}") != 1:
            raise ValueError(f"prompt {self.prompt!r} must hold {{text}} once")
        return self


def read_description(folder: Path) -> CodecVoiceDescription:
    file = folder / MODALITY_FILE
    try:
        return CodecVoiceDescription.model_validate(json.loads(file.read_text()))
    except ValidationError as error:
        first = error.errors()[0]
        what = ".".join(map(str, first["loc"]))
        reason = f"{what}: {first['msg']}" if what else first["msg"]
        raise ModelError(f"'{file}' describes no codec voice", why=reason, fix="rlhf tts voice writes one") from error
