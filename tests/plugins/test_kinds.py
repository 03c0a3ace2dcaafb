"""The one table of kinds is what protocols, configuration, kit and templates agree with."""

from __future__ import annotations

import inspect

import pytest

import rlhf_testing as testing
from rlhf_core.config.run import RunConfig
from rlhf_core.plugins import protocols
from rlhf_core.plugins.registry import KIND_OF_FIELD, KINDS, METHODS, PROTOCOLS, TABLE


@pytest.mark.parametrize("kind", [kind for kind in TABLE if kind.protocol], ids=lambda kind: kind.name)
def test_the_protocol_has_the_methods(kind: object) -> None:
    protocol = getattr(protocols, kind.protocol)  # type: ignore[attr-defined]
    assert all(callable(getattr(protocol, method)) for method in METHODS[kind.name])  # type: ignore[attr-defined]


def test_every_component_field_of_a_run_has_a_kind() -> None:
    named = {field for field, info in RunConfig.model_fields.items() if "ComponentConfig" in str(info.annotation)}
    assert named <= set(KIND_OF_FIELD)
    assert {"loss", "trackers", "benchmarks"} <= named


def test_every_check_of_the_kit_is_of_a_kind() -> None:
    checks = {name.removeprefix("check_") for name in testing.__all__ if name.startswith("check_")}
    assert checks - {"config", "command", "hooks", "strategy_on_ranks"} == set(KINDS)
    assert all(inspect.isclass(getattr(protocols, name)) for name in PROTOCOLS.values())
