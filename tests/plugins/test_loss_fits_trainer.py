"""A loss is matched to what the trainer feeds, under today's name of the kind of data and the earlier one."""

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


@pytest.mark.parametrize("feeds", ["judged", "unpaired"])
@pytest.mark.parametrize("consumes", ["judged", "unpaired"])
def test_unpaired_is_the_name_and_judged_its_alias(feeds: str, consumes: str) -> None:
    check_fit(run(feeds, consumes))


@pytest.mark.parametrize("consumes", ["judged", "unpaired"])
def test_another_kind_of_data_is_refused(consumes: str) -> None:
    with pytest.raises(PluginError, match=f"loss 'l' consumes {consumes}, but trainer 't' feeds pairs"):
        check_fit(run("pairs", consumes))
