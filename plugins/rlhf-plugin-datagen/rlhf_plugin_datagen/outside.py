"""Data sets outside any run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rlhf_core.cli import context_of
from rlhf_core.config import Registry
from rlhf_core.data import Datasets, PreferencePair


def open_datasets(registry: Registry, name: str, seed: int = 0, **settings: Any) -> Datasets:
    return context_of(registry, seed=seed, dataset={"name": name, **settings}).datasets


def bare_name(datasets: Datasets, pair: PreferencePair) -> PreferencePair:
    """The pair under its own id, where a single source makes its label superfluous."""
    return replace(pair, id=datasets.sources[0].own_id(pair.id)) if len(datasets.sources) == 1 else pair
