"""Strategies on two ranks keep their contract, and the check catches what breaks it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from broken_ranks import RanksConfig, ShardsConfig

import rlhf_testing as kit
from rlhf_core.plugins.registry import Registry

FAULTS = [
    (RanksConfig, "mean", "gradients are those of one process"),
    (RanksConfig, "order", "gather_objects"),
    (ShardsConfig, "own norm", "the norm over all ranks"),
]
MORE_FAULTS = [
    (RanksConfig, "no exchange", "gradients are those of one process"),
    (RanksConfig, "exchange", "exchange_objects"),
    (RanksConfig, "state", "as if it had not been saved"),
    (RanksConfig, "deaf", "the others' next collective raises"),
    (RanksConfig, "hangs", "seen: rank 0: exchanges; rank 1: exchanges"),
    (RanksConfig, "alone", "after alone.. rank 0 has done its work"),
    (ShardsConfig, "own part", "full_state.. gives rank 0 whole weights"),
    (ShardsConfig, "forward", "sharded_forward.. equals one of the whole weights"),
]


@pytest.mark.slow
def test_ddp_keeps_its_contract() -> None:
    kit.check_strategy_on_ranks(Registry(disabled=()).load("strategy", "ddp")(device="cpu"))


@pytest.mark.slow
@pytest.mark.parametrize(("make", "fault", "rule"), FAULTS)
def test_a_broken_strategy(make: Callable[..., Any], fault: str, rule: str) -> None:
    with pytest.raises(AssertionError, match=rule):
        kit.check_strategy_on_ranks(make(fault=fault))


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(("make", "fault", "rule"), MORE_FAULTS)
def test_another_broken_strategy(make: Callable[..., Any], fault: str, rule: str) -> None:
    with pytest.raises(AssertionError, match=rule):
        kit.check_strategy_on_ranks(make(fault=fault), limit_s=40 if fault == "hangs" else 300)


def test_one_rank_is_no_several() -> None:
    with pytest.raises(AssertionError, match="check_strategy checks one process"):
        kit.check_strategy_on_ranks(RanksConfig(), ranks=1)
