"""What the entry points of the trainers name; importing this never imports torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field, field_validator

from rlhf_core.config import BuildContext, ConfigError
from rlhf_core.models import ModelConfig
from rlhf_core.rl import KLSettings, OnlineTrainerConfig
from rlhf_core.training import OptimizerSettings
from rlhf_plugin_distill.teacher_config import TeacherSettings, teacher_of
from rlhf_plugin_sft.config import SftConfig

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
    "schedules",
    "trace_every",
    "trace_completions",
)
"""Settings of policy gradients, schedules and samples of the trace, which no step of it reads."""


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
    group_size: int = Field(1, ge=1, le=2**16)
    optimizer: OptimizerSettings = OptimizerSettings(learning_rate=1e-5, warmup_steps=2)
    kl: KLSettings = KLSettings(track=False)

    _teacher = field_validator("teacher", mode="before")(teacher_of)

    def memory_models(self, run: Any) -> Sequence[tuple[ModelConfig, int]]:
        """The teacher, whole in each process, for ``rlhf memory plan``."""
        return [(model, 1) for model in self.teacher.local_models(run.model)]

    def rehearsal(self, ctx: BuildContext, sizes: Sequence[tuple[int, Sequence[int]]]) -> tuple[Any, Sequence[Any]]:
        """Module and samples of these lengths (prompt, completions), likewise."""
        from rlhf_core.training import PolicyModule
        from rlhf_plugin_distill.rehearsal import distill_rehearsal

        module = PolicyModule(ctx.policy.model, self.sampling.temperature or 1.0)
        return distill_rehearsal(self.teacher, ctx, sizes, module)

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
        from rlhf_plugin_distill.checks import check_teacher

        check_teacher(self.teacher, ctx)


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

    def memory_models(self, run: Any) -> Sequence[tuple[ModelConfig, int]]:
        """The teacher, whole in each process, for ``rlhf memory plan``."""
        return [(model, 1) for model in self.teacher.local_models(run.model)]

    def rehearsal(self, ctx: BuildContext, sizes: Sequence[tuple[int, Sequence[int]]]) -> tuple[Any, Sequence[Any]]:
        """Module and samples of these lengths (prompt, completions), likewise."""
        from rlhf_core.training import PolicyModule
        from rlhf_plugin_distill.rehearsal import distill_rehearsal

        return distill_rehearsal(self.teacher, ctx, sizes, PolicyModule(ctx.policy.model))

    def preflight(self, ctx: BuildContext) -> None:
        """Refuse a teacher that cannot teach."""
        super().preflight(ctx)
        other = self.teacher.tokenizer == "other"
        if (self.teacher.context or other) and self.learn == "all":
            raise ConfigError(
                f"trainer.teacher.{'tokenizer=other' if other else 'context'} cannot be combined with learn: all",
                why="the teacher's context is written before one answer, not before each of a conversation",
                fix="--set trainer.learn=last",
            )
        from rlhf_plugin_distill.checks import check_teacher

        check_teacher(self.teacher, ctx)
