"""A loss is matched to what the trainer feeds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rlhf_core.config.plan import check_fit
from rlhf_core.types.errors import PluginError


def run(feeds: str, consumes: str) -> Any:
    return SimpleNamespace(
        trainer=SimpleNamespace(name="t", feeds=feeds), loss=SimpleNamespace(name="l", consumes=consumes)
    )


def test_a_loss_of_another_kind_of_data_is_refused() -> None:
    check_fit(run("unpaired", "unpaired"))
    with pytest.raises(PluginError, match="loss 'l' consumes unpaired, but trainer 't' feeds pairs"):
        check_fit(run("pairs", "unpaired"))
