"""Builds datasets from settings as a run does."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.data.datasets import Datasets
from rlhf_core.data.settings import DatasetSettings
from rlhf_core.plugins.context import BuildContext
from rlhf_core.plugins.registry import Registry
from rlhf_core.types.errors import DatasetError


@pytest.fixture(scope="session")
def datasets() -> Callable[..., Datasets]:
    """``datasets(name="jsonl", path=...)`` -> the Datasets of such a run."""
    registry = Registry(disabled=())

    def make(**settings: Any) -> Datasets:
        parsed = DatasetSettings.model_validate(settings, context={"registry": registry})
        return Datasets(parsed, BuildContext(config=None, registry=registry, seed=0))  # type: ignore[arg-type]

    return make


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    """``write("a.jsonl", rows)`` -> its path."""

    def make(name: str, rows: Iterable[Any]) -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(r if isinstance(r, str) else json.dumps(r) + "\n" for r in rows), encoding="utf-8")
        return str(path)

    return make


@pytest.fixture(scope="session")
def refused() -> Callable[..., None]:
    """``refused(make, *parts)``: the error has exit code 2 and every one of the parts."""

    def check(make: Callable[[], Any], *parts: str) -> None:
        with pytest.raises(DatasetError) as caught:
            make()
        assert caught.value.exit_code == 2
        for part in parts:
            assert part in str(caught.value), f"{part!r} is not in: {caught.value}"

    return check
