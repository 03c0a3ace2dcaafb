"""The algorithms of this package; importing this never imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field, field_validator

from rlhf_core.config import BuildContext, ConfigError, component
from rlhf_core.data import DatasetSettings
from rlhf_plugin_algorithms.config import AlgorithmConfig
from rlhf_plugin_distill.config import teacher_of
from rlhf_plugin_distill.loss_config import ReverseKlConfig
from rlhf_plugin_distill.teacher_config import TeacherSettings
from rlhf_plugin_grpo.advantage_config import GroupNormConfig, LeaveOneOutConfig, MaxRLConfig
from rlhf_plugin_ppo.config import GaeConfig

AdvantageField, LossField = component("advantage"), component("loss")


class EstimatedConfig(AlgorithmConfig):
    """An algorithm whose policy gradient is an advantage estimator's."""

    component: ClassVar[str] = "rlhf_plugin_algorithms.estimated:Estimated"
    advantage: AdvantageField  # pyright: ignore[reportInvalidTypeForm]
    """Any estimator: ``rlhf plugins list --kind advantage``."""

    @property
    def least_group_size(self) -> int:
        """The estimator's."""
        return self.advantage.least_group_size


class GrpoConfig(EstimatedConfig):
    """Group-relative policy gradient (Shao et al. 2024); the same updates as ``--algo grpo``."""

    name: str = "grpo"
    advantage: AdvantageField = GroupNormConfig.from_settings({})  # pyright: ignore[reportInvalidTypeForm]


class RlooConfig(EstimatedConfig):
    """The other completions' mean is the baseline (Ahmadian et al. 2024)."""

    name: str = "rloo"
    companions: ClassVar[Mapping[str, Any]] = {"loss": "rloo"}
    advantage: AdvantageField = LeaveOneOutConfig.from_settings({})  # pyright: ignore[reportInvalidTypeForm]


class MaxRlConfig(EstimatedConfig):
    """Maximum-likelihood RL (2026, arXiv 2602.02710): the centred reward over the group's mean. Of verdicts."""

    name: str = "max_rl"
    companions: ClassVar[Mapping[str, Any]] = {"reward": "verifier", "dataset": "pocket/arithmetic"}
    advantage: AdvantageField = MaxRLConfig.from_settings({})  # pyright: ignore[reportInvalidTypeForm]


class PpoConfig(EstimatedConfig):
    """A critic is the baseline of every token, and learns the returns (Schulman et al. 2017). The KL's coefficient
    stays as it is; ``--algo ppo`` steers it."""

    name: str = "ppo"
    components: ClassVar[tuple[str, ...]] = ("policy_gradient", "value")
    has_critic: ClassVar[bool] = True
    companions: ClassVar[Mapping[str, Any]] = {
        "loss": "ppo_clip",
        "trainer": {"kl": {"where": "reward", "estimator": "k1", "coefficient": 0.02}},
    }
    advantage: AdvantageField = GaeConfig.from_settings({})  # pyright: ignore[reportInvalidTypeForm]


class HierarchicalGrpoConfig(AlgorithmConfig):
    """GRPO for proposers and solvers (prime-rl 0.8, ``hierarchical_grpo``): a solver is compared with the others that
    tried the same proposed problem, a proposer with the other proposers of its prompt. The reward less the mean; 0 for
    one that has nobody to be compared with. ``Rollout.info`` says who a rollout is."""

    name: str = "hierarchical_grpo"
    component: ClassVar[str] = "rlhf_plugin_algorithms.hierarchical:HierarchicalGrpo"
    min_group_size: ClassVar[int] = 2
    role_key: str = "role"
    """Key of ``Rollout.info`` with the role; a rollout without it is a proposer."""
    problem_key: str = "problem"
    """Key with what is the same for all solvers of one problem."""
    solvers: tuple[str, ...] = ("solver",)
    """Roles that are compared within a problem."""


class EchoConfig(GrpoConfig):
    """ECHO (2026, arXiv 2605.24517): GRPO on what the policy wrote, and a cross-entropy on what the environment
    answered, which every episode teaches, failed ones too."""

    name: str = "echo"
    component: ClassVar[str] = "rlhf_plugin_algorithms.echo:Echo"
    components: ClassVar[tuple[str, ...]] = ("policy_gradient", "cross_entropy")
    roles: Mapping[str, float] = {"tool": 0.1}
    """Role of a turn (``tool``, ``user``, ``environment``) -> weight of its tokens, the template's marks included."""

    def preflight(self, ctx: BuildContext) -> None:
        """Refuse a run in which nobody answers."""
        super().preflight(ctx)
        if getattr(ctx.config.agent, "name", "single_turn") == "single_turn":
            raise ConfigError(
                "algorithm 'echo' has no environment to learn from",
                why="each completion is one turn, which nothing answers",
                fix="--env NAME, or --algo grpo",
            )


class SftMixConfig(GrpoConfig):
    """GRPO, and a cross-entropy on demonstrations in every step."""

    name: str = "sft_mix"
    component: ClassVar[str] = "rlhf_plugin_algorithms.sft_mix:SftMix"
    components: ClassVar[tuple[str, ...]] = ("policy_gradient", "cross_entropy")
    dataset: DatasetSettings = Field(
        default_factory=lambda: DatasetSettings.from_settings({"name": "pocket/assistant"})
    )
    """Demonstrations, in the forms that ``--dataset`` takes."""
    rows: int = Field(8, ge=1)
    """Demonstrations of one step, over all ranks."""
    weight: float = Field(1.0, gt=0, allow_inf_nan=False)
    """Of their mean cross-entropy beside the policy gradient."""


class DistillConfig(AlgorithmConfig):
    """On-policy distillation: at each token that the policy wrote the divergence from a teacher, as ``--algo
    distill``."""

    name: str = "distill"
    component: ClassVar[str] = "rlhf_plugin_algorithms.distill:Distill"
    components: ClassVar[tuple[str, ...]] = ("kl",)
    companions: ClassVar[Mapping[str, Any]] = {
        "reward": "unscored",
        "trainer": {"kl": {"track": False}},
    }
    teacher: TeacherSettings = TeacherSettings()
    loss: LossField = ReverseKlConfig.from_settings({})  # pyright: ignore[reportInvalidTypeForm]
    """The divergence: ``forward_kl``, ``reverse_kl`` or ``jsd``."""

    _teacher = field_validator("teacher", mode="before")(teacher_of)

    def preflight(self, ctx: BuildContext) -> None:
        """Refuse a teacher that cannot teach."""
        super().preflight(ctx)
        from rlhf_plugin_distill.checks import check_teacher

        check_teacher(self.teacher, ctx.with_(config=ctx.config.model_copy(update={"loss": self.loss})))
