"""The engine and the strategy that docs/engines-and-strategies.md shows keep their contracts."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlhf_testing import check_rollout, check_strategy, check_strategy_on_ranks
from tests.docs.blocks import ALL

PAGE = "docs/engines-and-strategies.md"


@pytest.fixture
def configs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Module of the page's Configs, beside its other files."""
    files = {b.title: b.text for b in ALL if b.page == PAGE and b.title and b.title.startswith("acme_")}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in files:
        monkeypatch.delitem(sys.modules, name.removesuffix(".py"), raising=False)
    yield importlib.import_module("acme_config")
    for name in files:
        sys.modules.pop(name.removesuffix(".py"), None)


def test_the_engine_keeps_its_contract(configs: Any) -> None:
    check_rollout(configs.EngineConfig())


def test_the_strategy_keeps_its_contract(configs: Any) -> None:
    check_strategy(configs.SummedConfig(device="cpu"))


@pytest.mark.slow
def test_the_strategy_keeps_its_contract_on_two_ranks(configs: Any) -> None:
    check_strategy_on_ranks(configs.SummedConfig(device="cpu"))
