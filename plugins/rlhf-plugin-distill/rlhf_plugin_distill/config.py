"""What the entry points of the trainers name; importing this never imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field, field_validator, model_validator

from rlhf_core.config import BuildContext, Config, ConfigError
from rlhf_core.models import ModelPath
from rlhf_core.rl import OnlineTrainerConfig
from rlhf_core.training import OptimizerSettings
from rlhf_plugin_sft.config import SftConfig


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
        if self.path and self.url:
            raise ConfigError("trainer.teacher has a path and a url", fix="leave one of them out")
        if self.url and not self.top_k:
            raise ConfigError(
                "trainer.teacher.top_k=0 asks for the whole vocabulary, which a server does not give",
                fix="--set trainer.teacher.top_k=20, and start vLLM with --max-logprobs 20 or more",
            )
        if self.context and "{prompt}" not in self.context:
            raise ConfigError(
                "trainer.teacher.context has no {prompt}",
                why="the teacher would not read the question",
                fix='for example "{prompt}\\n\\nA correct answer: {answer}"',
            )
        return self

    def preflight(self, ctx: BuildContext, temperature: float) -> None:
        """Refuse a teacher that is not there or whose vocabulary is another, before a model is loaded."""
        from rlhf_plugin_distill.checks import check_teacher

        if not (self.path or self.url):
            raise ConfigError(
                "distillation needs a teacher",
                fix="--set trainer.teacher=FOLDER, a run, 'pocket', or the address of a vLLM server",
            )
        if self.url and temperature != 1:
            raise ConfigError(
                f"loss.temperature {temperature:g} cannot be combined with trainer.teacher.url",
                why="a server's log-probabilities are at temperature 1",
                fix="leave loss.temperature out, or name a folder: --set trainer.teacher=FOLDER",
            )
        check_teacher(self, ctx)


def teacher_of(value: Any) -> Any:
    """The section that a teacher's name stands for."""
    if isinstance(value, str):
        return {"url": value, "top_k": 20} if value.startswith(("http://", "https://")) else {"path": value}
    return value


WITHOUT_EFFECT = (
    "train_batch_size",
    "epochs_per_rollout_batch",
    "target_kl",
    "importance",
    "kl",
    "entropy_coefficient",
    "entropy_quantile",
    "overlong",
    "dynamic_sampling",
    "adaptive_sampling",
    "micro_batch_tokens",
)
"""Settings of policy gradients."""


class DistillConfig(OnlineTrainerConfig):
    """On-policy distillation (Agarwal et al. 2024, GKD; Gu et al. 2024, MiniLLM): the student writes, and learns the
    teacher's distribution at each token that it wrote. ``distill_offline`` learns on given completions."""

    name: str = "distill"
    component: ClassVar[str] = "rlhf_plugin_distill.trainer:DistillTrainer"
    feeds: ClassVar[str | None] = "teacher"
    reads: ClassVar[str] = "prompts"
    companions: ClassVar[Mapping[str, Any]] = {
        "dataset": "pocket/assistant",
        "loss": "reverse_kl",
        "reward": "unscored",
    }
    recipes: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "pocket": {
            "trainer": {
                "steps": 40,
                "rollout_batch_size": 64,
                "micro_batch_size": 64,
                "optimizer": {"learning_rate": 3e-4, "warmup_steps": 2},
                "sampling": {"max_tokens": 48},
            }
        }
    }
    teacher: TeacherSettings = TeacherSettings()
    group_size: int = Field(1, ge=1)
    optimizer: OptimizerSettings = OptimizerSettings(learning_rate=1e-5, warmup_steps=2)

    _teacher = field_validator("teacher", mode="before")(teacher_of)

    def preflight(self, ctx: BuildContext) -> None:
        """Refuse a teacher that cannot teach, and settings of policy gradients."""
        fields = type(self).model_fields
        for name in WITHOUT_EFFECT:
            if getattr(self, name) != fields[name].default:
                raise ConfigError(
                    f"trainer.{name} has no effect with algorithm '{self.name}'",
                    why="it learns from a teacher's distributions, not from advantages",
                    fix="leave it out",
                )
        if ctx.config.advantage is not None:
            raise ConfigError(f"advantage '{ctx.config.advantage.name}' has no effect here", fix="leave it out")
        self.micro_batches(ctx.world_size)
        self.check_precision(ctx)
        self.check_rollouts(ctx)
        self.teacher.preflight(ctx, getattr(ctx.config.loss, "temperature", 1.0))


class DistillOfflineConfig(SftConfig):
    """Off-policy distillation (Hinton et al. 2015): the student learns the teacher's distribution at each token of the
    demonstrations. With texts that the teacher wrote it is sequence-level distillation (Kim and Rush 2016) and more."""

    name: str = "distill_offline"
    component: ClassVar[str] = "rlhf_plugin_distill.offline:build_trainer"
    feeds: ClassVar[str | None] = "teacher"
    reads: ClassVar[str] = "demonstrations"
    companions: ClassVar[Mapping[str, Any]] = {"dataset": "pocket/assistant", "loss": "forward_kl"}
    recipes: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "pocket": {"trainer": {"name": "distill_offline", "optimizer": {"learning_rate": 3e-4}}}
    }
    teacher: TeacherSettings = TeacherSettings()

    _teacher = field_validator("teacher", mode="before")(teacher_of)

    def preflight(self, ctx: BuildContext) -> None:
        """Refuse a teacher that cannot teach."""
        super().preflight(ctx)
        if self.teacher.context and self.learn == "all":
            raise ConfigError(
                "trainer.teacher.context cannot be combined with learn: all",
                why="the teacher's context is written before one answer, not before each of a conversation",
                fix="--set trainer.learn=last",
            )
        self.teacher.preflight(ctx, getattr(ctx.config.loss, "temperature", 1.0))
