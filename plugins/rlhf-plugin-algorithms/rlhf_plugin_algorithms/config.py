"""The Config of every algorithm, and the trainer that runs them; importing this never imports torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field, model_validator

from rlhf_core.config import (
    BuildContext,
    ComponentConfig,
    ConfigError,
    PluginError,
    Registry,
    RunConfig,
    UserError,
    component,
    did_you_mean,
    merge_settings,
)
from rlhf_core.rl import OnlineTrainerConfig
from rlhf_core.training import OptimizerSettings
from rlhf_plugin_grpo.config import GrpoConfig

COMPONENTS = ("policy_gradient", "cross_entropy", "kl", "value")
"""Terms of the loss, see :class:`rlhf_plugin_algorithms.signals.Signal`."""
AlgorithmField = component("algorithm")


class AlgorithmConfig(ComponentConfig):
    """Base of an algorithm's Config."""

    components: ClassVar[tuple[str, ...]] = ("policy_gradient",)
    """What its signals may be; others are refused."""
    companions: ClassVar[Mapping[str, Any]] = {}
    """What a run of it has where the user says nothing, as a trainer's ``companions``; ``trainer`` has settings."""

    sources: tuple[str, ...] = ()
    """Labels of the data sources whose rollouts it learns from, where a run has several algorithms (``algorithms``);
    empty takes those that no other names. An environment is chosen by the source of its rows."""

    @model_validator(mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        """Settings of a component without its name are the default one's."""
        defaults = {key: field.default for key, field in cls.model_fields.items()} if isinstance(value, dict) else {}
        named = {
            key: {"name": default.name, **value[key]}
            for key, default in defaults.items()
            if isinstance(default, ComponentConfig) and isinstance(value.get(key), dict)
        }
        return {**value, **named} if named else value

    def check_components(self) -> None:
        """Refuse components that there are not."""
        for name in self.components:
            if name not in COMPONENTS:
                raise PluginError(
                    f"algorithm '{self.name}' declares the component '{name}'",
                    why=f"there are {', '.join(COMPONENTS)}",
                    fix=did_you_mean(name, COMPONENTS) or "change `components` of its Config",
                )
        if "value" in self.components and not self.has_critic:
            raise PluginError(
                f"algorithm '{self.name}' declares the component 'value', but no critic",
                fix="set has_critic: ClassVar[bool] = True in its Config, and an attribute `critic` where it is built",
            )


def check_config(config: Any) -> None:
    """Refuse an algorithm's Config that cannot say what its signals may be."""
    if not isinstance(config, AlgorithmConfig):
        raise PluginError(
            f"the Config of algorithm '{config.name}' is no AlgorithmConfig",
            why="it has to say its components and sources",
            fix="derive it from rlhf_plugin_algorithms.config.AlgorithmConfig",
        )
    config.check_components()


class SignalsConfig(ComponentConfig):
    """What stands in the place of an advantage estimator: it asks the algorithms. Built by the trainer."""

    name: str = "algorithm"
    component: ClassVar[str] = "rlhf_plugin_algorithms.estimator:SignalEstimator"
    algorithms: tuple[AlgorithmField, ...] = ()  # pyright: ignore[reportInvalidTypeForm]

    @property
    def least_group_size(self) -> int:
        """The most that any needs."""
        return max(one.least_group_size for one in self.algorithms)


class CriticSignalsConfig(SignalsConfig):
    """The same with a critic."""

    has_critic: ClassVar[bool] = True


NO_EFFECT = ("schedules", "entropy_quantile")
"""Settings that the trainers of one algorithm have."""
OF_POLICY_GRADIENT = ("entropy_coefficient", "target_kl", "importance")
"""Settings of its loss, which the other components do not read."""


class AlgorithmTrainerConfig(OnlineTrainerConfig):
    """The on-policy loop, told by algorithms what each token is to learn: ``rlhf train --algo max_rl``."""

    name: str = "algorithm"
    component: ClassVar[str] = "rlhf_plugin_algorithms.trainer:AlgorithmTrainer"
    companions: ClassVar[Mapping[str, Any]] = {
        "dataset": "pocket/assistant",
        "reward": "ensemble",
        "loss": "grpo_clip",
    }
    recipes: ClassVar[Mapping[str, Mapping[str, Any]]] = GrpoConfig.recipes

    algorithm: AlgorithmField | None = None  # pyright: ignore[reportInvalidTypeForm]
    """What rollouts teach; ``grpo`` where nothing is said."""
    algorithms: tuple[AlgorithmField, ...] = ()  # pyright: ignore[reportInvalidTypeForm]
    """Several instead, each with the ``sources`` of its rollouts."""
    group_size: int = Field(8, ge=1, le=2**16)
    optimizer: OptimizerSettings = OptimizerSettings(learning_rate=1e-5, warmup_steps=2)

    @model_validator(mode="before")
    @classmethod
    def _default(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        if value.get("algorithm") and value.get("algorithms"):
            raise ConfigError("trainer.algorithm and trainer.algorithms are both given", fix="leave one of them out")
        return value if value.get("algorithms") else {**value, "algorithm": value.get("algorithm") or "grpo"}

    @classmethod
    def recipe_of(cls, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """What the algorithms go with; of several the first one's word counts."""
        several = options.get("algorithms")
        recipe: dict[str, Any] = {}
        components: set[str] = set()
        for one in several if isinstance(several, list | tuple) and several else [options.get("algorithm")]:
            name = one.get("name") if isinstance(one, Mapping) else one
            try:
                chosen = Registry().load("algorithm", str(name or "grpo"))
            except UserError:  # it is refused later
                continue
            recipe = merge_settings(getattr(chosen, "companions", {}), recipe)
            components.update(getattr(chosen, "components", ()))
        if "policy_gradient" not in components:  # a model's recipe has a KL penalty, which nothing would read
            recipe = merge_settings({"trainer": {"kl": {"coefficient": 0.0}}}, recipe)
        return recipe

    @property
    def chosen(self) -> tuple[Any, ...]:
        """The algorithms of the run."""
        several: tuple[Any, ...] = self.algorithms
        return several or (self.algorithm,)

    @property
    def components(self) -> frozenset[str]:
        """What their signals may be."""
        return frozenset(name for one in self.chosen for name in one.components)

    @property
    def estimator(self) -> SignalsConfig:
        """What the core builds in the place of an advantage estimator."""
        critic = any(one.has_critic for one in self.chosen)
        return (CriticSignalsConfig if critic else SignalsConfig)(algorithms=self.chosen)

    @property
    def critic_advantage(self) -> Any:
        """The estimator that brings the critic, for the plan of memory; None without one."""
        return next((one.advantage for one in self.chosen if one.has_critic and hasattr(one, "advantage")), None)

    def run_of(self, run: RunConfig) -> RunConfig:
        """The run with that estimator."""
        return run.model_copy(update={"advantage": self.estimator})

    def preflight(self, ctx: BuildContext) -> None:
        """Refuse algorithms that cannot be together or have no rollouts, and settings that nothing reads."""
        self._check_algorithms(ctx)
        self._check_settings(ctx)
        super().preflight(ctx.with_(config=self.run_of(ctx.config)))

    def _check_algorithms(self, ctx: BuildContext) -> None:
        for one in self.chosen:
            check_config(one)
        critics = [one.name for one in self.chosen if one.has_critic]
        if len(critics) > 1:
            raise ConfigError(f"algorithms {' and '.join(critics)} each bring a critic", fix="leave one of them out")
        strategy = getattr(ctx.config.strategy, "name", "auto").rpartition("/")[2]
        taught = [one.name for one in self.chosen if getattr(one, "teacher", None) is not None]
        if taught and len(self.chosen) > 1 and ctx.world_size > 1 and strategy not in ("auto", "ddp", "single"):
            raise ConfigError(
                f"algorithm '{taught[0]}' has a teacher beside other algorithms, which strategy '{strategy}' cannot do",
                why="ranks without its rollouts would wait for the shards of its further forward",
                fix="--set strategy.name=ddp, or one algorithm for all sources",
            )
        if len(self.chosen) > 1 or any(one.sources for one in self.chosen):
            from rlhf_core.data import Datasets

            algorithm_of(self.chosen, list(Datasets(ctx.config.dataset, ctx).weights))

    def _check_settings(self, ctx: BuildContext) -> None:
        fields, names = type(self).model_fields, " and ".join(one.name for one in self.chosen)
        unread = NO_EFFECT if "policy_gradient" in self.components else (*NO_EFFECT, *OF_POLICY_GRADIENT)
        for setting in unread:
            if getattr(self, setting) != fields[setting].default:
                raise ConfigError(f"trainer.{setting} has no effect with algorithm {names}", fix="leave it out")
        if self.sampling.truncates:
            raise ConfigError(
                f"algorithm {names} cannot learn from truncated sampling (trainer.sampling.top_p, top_k, min_p)",
                fix="leave them out, or take an algorithm of its own trainer (--algo grpo)",
            )
        own = [one.advantage.name for one in self.chosen if hasattr(one, "advantage")]
        advantage = ctx.config.advantage
        if advantage is not None and advantage.name not in own:
            raise ConfigError(
                f"advantage '{advantage.name}' has no effect with algorithm {names}",
                why=f"that takes {', '.join(own) or 'none'}; the advantage may be what the loss goes with",
                fix=f"--set trainer.algorithm.advantage={advantage.name}, where it has that setting, or leave it out",
            )
        loss = getattr(ctx.config.loss, "name", "")
        unused = "trainer.kl.coefficient" if self.kl.coefficient else f"loss '{loss}'" * (loss != "grpo_clip")
        if unused and "policy_gradient" not in self.components:
            why = "it has no policy gradient"
            raise ConfigError(f"{unused} has no effect with algorithm {names}", why=why, fix="leave it out")
        apart = [one.name for one in self.chosen if not one.has_critic and "policy_gradient" in one.components]
        if apart and any(one.has_critic for one in self.chosen) and self.kl.coefficient and self.kl.where == "reward":
            raise ConfigError(
                f"trainer.kl.where=reward has no effect on algorithm {' and '.join(apart)}",
                why="where one algorithm has a critic, that one subtracts the KL from its own rewards",
                fix="--set trainer.kl.where=loss, or --set trainer.kl.coefficient=0",
            )
        to_reference = any("kl" in one.components and getattr(one, "teacher", None) is None for one in self.chosen)
        if to_reference and not (self.kl.track or self.kl.coefficient):
            raise ConfigError(
                f"the component 'kl' of algorithm {names} needs the reference policy", fix="--set trainer.kl.track=true"
            )


def algorithm_of(chosen: Sequence[Any], sources: Sequence[str]) -> dict[str, int]:
    """Source -> the position of the algorithm that learns from its rollouts.

    Raises:
        ConfigError: a source has none or two, or an algorithm none.
    """
    rest = [n for n, one in enumerate(chosen) if not one.sources]
    taken: dict[str, int] = {}
    for n, one in enumerate(chosen):
        for source in one.sources:
            if source not in sources:
                raise ConfigError(
                    f"algorithm '{one.name}' is to learn from source '{source}', which the run does not have",
                    why=f"its sources: {', '.join(sources)}",
                    fix=did_you_mean(source, sources) or "name one of them, or give it that label in dataset.sources",
                )
            if source in taken:
                names = f"'{chosen[taken[source]].name}' and '{one.name}'"
                raise ConfigError(f"algorithms {names} both learn from source '{source}'", fix="name it once")
            taken[source] = n
    without = [source for source in sources if source not in taken]
    if len(rest) > 1:
        names = " and ".join(f"'{chosen[n].name}'" for n in rest)
        raise ConfigError(f"algorithms {names} name no sources", fix="say which of dataset.sources each learns from")
    if bool(rest) != bool(without):
        if rest:
            what = f"algorithm '{chosen[rest[0]].name}' has no rollouts: the others name every source"
        else:
            what = f"no algorithm learns from source '{without[0]}'"
        raise ConfigError(what, fix="change `sources` in trainer.algorithms")
    return taken | dict.fromkeys(without, *rest)
