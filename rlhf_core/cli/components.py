"""What a command builds outside any run: components by name, a context for them, a model that samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlhf_core.models.config import ModelConfig
    from rlhf_core.models.load import LoadedModel
    from rlhf_core.plugins.component import ComponentConfig
    from rlhf_core.plugins.context import BuildContext
    from rlhf_core.plugins.registry import Registry


def open_registry() -> Registry:
    """Every installed component, those that hook plugins register included."""
    from rlhf_core.cli.options import open_plugins

    return open_plugins()[0]


def context_of(
    registry: Registry,
    *,
    seed: int = 0,
    dataset: Mapping[str, Any] | None = None,
    reward: ComponentConfig | None = None,
    model: ModelConfig | None = None,
    policy: LoadedModel | None = None,
    environment: ComponentConfig | None = None,
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
        environment: in which it plays; rows get its tools, and a data set may be that environment's own.

    Raises:
        ConfigError: the dataset section does not make sense.
        DatasetError: a source cannot be built.
    """
    from rlhf_core.config.run import RunConfig
    from rlhf_core.data.datasets import Datasets
    from rlhf_core.data.settings import DatasetSettings
    from rlhf_core.models.config import ModelConfig
    from rlhf_core.plugins.context import BuildContext

    config = RunConfig.model_construct(seed=seed, reward=reward, model=model or ModelConfig(), environment=environment)
    ctx = BuildContext(config=config, registry=registry, seed=seed, policy=policy)
    if dataset is None:
        return ctx
    rows = DatasetSettings.from_settings(dataset, "dataset", registry)
    ctx = ctx.with_(config=config.model_copy(update={"dataset": rows}))
    return ctx.with_(datasets=Datasets(rows, ctx))


def load_sampler(registry: Registry, model: ModelConfig, rollout: str = "native") -> tuple[LoadedModel, Any]:
    """A model on the device that there is, and an engine that samples from it.

    Raises:
        ModelError: the model cannot be loaded.
    """
    import torch

    from rlhf_core.models.layers.matmul import use_matmul_backend
    from rlhf_core.models.load import load_policy

    use_matmul_backend("auto")
    policy = load_policy(model)
    policy.model.to("cuda" if torch.cuda.is_available() else "cpu")
    chosen = registry.config("rollout", rollout)
    return policy, chosen.build(context_of(registry, policy=policy))
