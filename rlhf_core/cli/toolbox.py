"""What a command that a plugin adds works with: components by name, a context outside any run, a model that samples.

Not promised (ADR 0007), and the one door to it: what commands of this repository share beyond ``rlhf_core.api``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from rlhf_core.cli.common import Choice, emit_json, quiet_libraries, set_up_logging, shorten, table
from rlhf_core.cli.groups import OpenGroup

if TYPE_CHECKING:
    from rlhf_core.config.base import ComponentConfig
    from rlhf_core.context import BuildContext
    from rlhf_core.models.config import ModelConfig
    from rlhf_core.models.load import LoadedModel
    from rlhf_core.registry import Registry

__all__ = [
    "Choice",
    "OpenGroup",
    "component_of",
    "context_of",
    "emit_json",
    "open_registry",
    "quiet_libraries",
    "sampler",
    "set_up_logging",
    "shorten",
    "table",
]


def open_registry() -> Registry:
    """Every installed component, those that hook plugins register included."""
    from rlhf_core.cli.options import open_plugins

    return open_plugins()[0]


def component_of(
    registry: Registry, kind: str, name: str, options: Mapping[str, Any] | None = None, settings: Iterable[str] = ()
) -> ComponentConfig:
    """A component's Config.

    Args:
        registry: where names are looked up.
        kind: for example ``reward``.
        name: the component.
        options: its settings by name.
        settings: ``a.b=c``, as ``--set`` takes them; they win.

    Raises:
        PluginError: there is no such component.
        ConfigError: a setting does not exist or has a value that cannot be used.
    """
    from pydantic import ValidationError

    from rlhf_core.config.errors import explain
    from rlhf_core.config.load import merge, parse_sets

    cls = registry.load(kind, name)
    chosen = merge(dict(options or {}), parse_sets(settings))
    try:
        return cls.model_validate({**chosen, "name": registry.find(kind, name).name}, context={"registry": registry})
    except ValidationError as error:
        raise explain(error, cls, where=f"{kind} '{name}'") from error


def context_of(
    registry: Registry,
    *,
    seed: int = 0,
    dataset: Mapping[str, Any] | None = None,
    reward: ComponentConfig | None = None,
    model: ModelConfig | None = None,
    policy: LoadedModel | None = None,
) -> BuildContext:
    """What a component is built with where there is no run.

    Args:
        registry: where names are looked up.
        seed: for components that draw at random.
        dataset: a ``dataset`` section, whose rows are then in ``ctx.datasets``; ``name`` may be short, as on the
            command line.
        reward: the reward that judges them, for its ``preflight``.
        model: the run's model in the configuration; None takes the default.
        policy: a loaded model, for components that need one.

    Raises:
        ConfigError: the dataset section does not make sense.
        DatasetError: a source cannot be built.
    """
    from pydantic import ValidationError

    from rlhf_core.config.data import DatasetSettings
    from rlhf_core.config.errors import explain
    from rlhf_core.config.run import RunConfig
    from rlhf_core.context import BuildContext
    from rlhf_core.data.datasets import Datasets
    from rlhf_core.models.config import ModelConfig

    config = RunConfig.model_construct(seed=seed, reward=reward, model=model or ModelConfig())
    ctx = BuildContext(config=config, registry=registry, seed=seed, policy=policy)
    if dataset is None:
        return ctx
    try:
        rows = DatasetSettings.model_validate(dict(dataset), context={"registry": registry})
    except ValidationError as error:
        raise explain(error, DatasetSettings, where="dataset") from error
    ctx = ctx.with_(config=config.model_copy(update={"dataset": rows}))
    return ctx.with_(datasets=Datasets(rows, ctx))


def sampler(registry: Registry, model: ModelConfig, rollout: str = "native") -> tuple[LoadedModel, Any]:
    """A model on the device that there is, and an engine that samples from it.

    Raises:
        ModelError: the model cannot be loaded.
    """
    import torch

    from rlhf_core.kernels.matmul import use_products
    from rlhf_core.models.load import load_policy

    use_products("auto")
    policy = load_policy(model)
    policy.model.to("cuda" if torch.cuda.is_available() else "cpu")
    chosen = component_of(registry, "rollout", rollout)
    return policy, chosen.build(context_of(registry, policy=policy))
