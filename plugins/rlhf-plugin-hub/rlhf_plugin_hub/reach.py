"""What the hub, or the cache where it does not answer, has."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence
from importlib import import_module
from typing import Any

from rlhf_core.data import DatasetError
from rlhf_core.models.sources import hub_reachable
from rlhf_core.types.errors import error_line


@contextlib.contextmanager
def hub_or_cache() -> Generator[None, None, None]:
    """Let ``datasets`` take what lies in its cache where the hub does not answer, and not ask it again and again."""
    modules: list[Any] = [import_module(name) for name in ("huggingface_hub.constants", "datasets.config")]
    flags = [(module, module.HF_HUB_OFFLINE) for module in modules]
    silent = not hub_reachable()
    for module, was in flags:
        module.HF_HUB_OFFLINE = was or silent
    try:
        yield
    finally:
        for module, was in flags:
            module.HF_HUB_OFFLINE = was


def look_up(path: str, subset: str | None, revision: str | None, splits: Sequence[str]) -> None:
    """Ask for a dataset and its splits; no rows are downloaded.

    Raises:
        DatasetError: they are neither at the hub nor in the cache.
    """
    import datasets

    try:
        with hub_or_cache():
            found = datasets.load_dataset_builder(path, subset, revision=revision).info.splits
    except Exception as error:  # the hub fails in as many ways as there are networks
        raise DatasetError(
            f"dataset '{path}'{f' (subset {subset})' if subset else ''} cannot be found",
            why=error_line(error),
            fix="check the path or the id; without a network, download it elsewhere and give its folder",
        ) from error
    for split in splits:
        if found and split.split("[")[0] not in found:
            raise DatasetError(
                f"dataset '{path}' has no split '{split}'",
                why=f"it has {', '.join(map(str, found))}",
                fix="check dataset.split and dataset.heldout_split",
            )
