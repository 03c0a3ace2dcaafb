"""Settings of a teacher; importing this never imports torch."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from rlhf_core.config import Config, ConfigError
from rlhf_core.models import ModelConfig, ModelPath


class TeacherSettings(Config):
    """Whose distributions the student learns. ``--set trainer.teacher=FOLDER`` (or ``=http://...``) says ``path`` (or
    ``url``) alone."""

    path: ModelPath = ""
    """A model in any form that ``model.path`` takes, with the student's tokenizer. The same model as the student's is
    self-distillation: the teacher stays as it is before training, and ``context`` makes the difference."""
    url: str = ""
    """A server with vLLM's completions API, such as ``http://127.0.0.1:8000``, instead of ``path``."""
    served_model: str = ""
    """The model's name at the server; empty takes the first that it lists."""
    top_k: int = Field(default=0, ge=0)
    """Compare the teacher's so many likeliest tokens, and all others together as one (a tail bucket). 0 compares the
    whole vocabulary; a server needs 1 or more."""
    context: str = ""
    """What the teacher reads in place of the last user's turn: a text with ``{prompt}``, which is that turn, and
    columns of the row such as ``{answer}`` or ``{completion}``, a demonstration. ``{feedback}`` is what an environment
    wrote under that name into ``Rollout.info``, or empty. Empty: the teacher reads the student's prompt."""
    tokenizer: Literal["same", "other"] = "same"
    """``other``: the teacher reads its own tokens of each completion, and likelihoods of the spans of text that are
    whole tokens of both are compared, as two outcomes, the span or any other text (Minixhofer et al. 2025, approximate
    likelihood matching). For one turn. With a ``url``, ``path`` is the folder of the server's tokenizer."""
    timeout_s: float = Field(default=120.0, gt=0, allow_inf_nan=False)
    """Seconds for one answer of a server."""

    @field_validator("url")
    @classmethod
    def _address(cls, url: str) -> str:
        if url and (not url.startswith(("http://", "https://")) or "@" in url):
            raise ConfigError(
                f"trainer.teacher.url: '{url.rpartition('@')[2]}' is not an address",
                why="it needs its protocol, and no name or key: those of VLLM_API_KEY are sent",
                fix="write http://127.0.0.1:8000",
            )
        return url.rstrip("/").removesuffix("/v1")

    @model_validator(mode="after")
    def _one(self) -> TeacherSettings:
        other = self.tokenizer == "other"
        if self.path and self.url and not other:
            raise ConfigError("trainer.teacher has a path and a url", fix="leave one of them out")
        if self.url and not self.path and other:
            raise ConfigError(
                "trainer.teacher.tokenizer=other needs the tokenizer of the server's model",
                why="the teacher reads its own chat template and its own tokens of a completion",
                fix="--set trainer.teacher.path=FOLDER with the tokenizer; no weights are read from it",
            )
        if self.url and not self.top_k and not other:
            raise ConfigError(
                "trainer.teacher.top_k=0 asks for the whole vocabulary, which a server does not give",
                fix="--set trainer.teacher.top_k=20, and start vLLM with --max-logprobs 20 or more",
            )
        if other and self.top_k:
            raise ConfigError(
                "trainer.teacher.tokenizer=other cannot be combined with trainer.teacher.top_k",
                why="it compares the likelihoods of spans of text, not of the likeliest tokens",
                fix="leave trainer.teacher.top_k out",
            )
        if self.context and "{prompt}" not in self.context:
            raise ConfigError(
                "trainer.teacher.context has no {prompt}",
                why="the teacher would not read the question",
                fix='for example "{prompt}\\n\\nA correct answer: {answer}"',
            )
        return self

    def require(self) -> None:
        """Refuse settings that name no teacher."""
        if not (self.path or self.url):
            raise ConfigError(
                "distillation needs a teacher",
                fix="--set trainer.teacher=FOLDER, a run, 'pocket', or the address of a vLLM server",
            )

    def local_models(self, student: ModelConfig) -> list[ModelConfig]:
        """The teacher in the run's processes; none of a server's."""
        self.require()
        return [] if self.url else [ModelConfig(path=self.path, dtype=student.dtype)]


def teacher_of(value: Any) -> Any:
    """The section that a teacher's name stands for."""
    if isinstance(value, str):
        return {"url": value, "top_k": 20} if value.startswith(("http://", "https://")) else {"path": value}
    return value
