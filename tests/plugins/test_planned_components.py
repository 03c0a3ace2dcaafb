"""Every process of a run uses the components of its plan."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rlhf_core.config.load import resolve
from rlhf_core.config.plan import make_plan, reload
from rlhf_core.plugins.registry import Registry
from rlhf_core.types.errors import PluginError


@pytest.mark.parametrize("changed", [{"version": "0.0.1"}, {"value": "rlhf_core.former.config:Other"}])
def test_a_component_that_is_not_the_planned_one_is_refused(changed: dict[str, str]) -> None:
    registry = Registry(disabled=())
    settings = ["trainer.name=grpo", "reward.name=verifier", "dataset=pocket/arithmetic"]
    plan = make_plan(registry, resolve(registry, settings=settings), 1)
    assert reload(Registry(disabled=()), plan).model_dump(mode="json") == plan.config
    other = replace(plan, components=tuple({**row, **changed} for row in plan.components))
    with pytest.raises(PluginError, match="differs between the plan and this process"):
        reload(Registry(disabled=()), other)
