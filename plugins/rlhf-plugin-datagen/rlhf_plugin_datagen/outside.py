"""Data sets and what components are built with, outside any run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rlhf_core.api import BuildContext, DatasetSettings, PreferencePair
from rlhf_core.config.errors import explain
from rlhf_core.config.run import RunConfig
from rlhf_core.data.library import Datasets
from rlhf_core.registry import Registry


def dataset_of(registry: Registry, name: str, **settings: Any) -> DatasetSettings:
    """A data set by its command-line spelling.

    Raises:
        ConfigError: a setting does not exist.
    """
    from pydantic import ValidationError

    try:
        return DatasetSettings.model_validate({"name": name, **settings}, context={"registry": registry})
    except ValidationError as error:
        raise explain(error, DatasetSettings, where="--dataset") from error


def open_datasets(registry: Registry, settings: DatasetSettings, seed: int) -> Datasets:
    """Its rows.

    Raises:
        DatasetError: a source cannot be built.
    """
    return Datasets(settings, context(registry, settings, seed))


def context(registry: Registry, dataset: DatasetSettings, seed: int) -> BuildContext:
    """No policy, no run folder; the default model where a component asks for the run's."""
    return BuildContext(config=RunConfig.model_construct(seed=seed, dataset=dataset), registry=registry, seed=seed)


def own_name(datasets: Datasets, pair: PreferencePair) -> PreferencePair:
    """The pair under its own id, where a single source makes its label superfluous."""
    return replace(pair, id=datasets.sources[0].own_id(pair.id)) if len(datasets.sources) == 1 else pair
