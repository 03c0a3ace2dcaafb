"""Strategies of one process, and the collectives that a second thread gets from them."""

from __future__ import annotations

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState

from rlhf_core.distributed.accelerated import AcceleratedStrategy, forget_mixed_precision
from rlhf_core.distributed.group import LocalStrategy, RankGroup, new_group
from rlhf_core.plugins.strategy_protocols import Collectives, GroupFactory, Strategy


@pytest.mark.parametrize("how", ["another accelerator", "the environment"])
def test_precision_is_not_what_another_library_left_behind(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A TRL trainer that ran before in this process asks accelerate for bfloat16, which every later one shares."""
    forget_mixed_precision()
    if how == "the environment":
        monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    else:
        AcceleratorState._reset_state()
        Accelerator(cpu=True, mixed_precision="bf16")
    layer, x_BH = torch.nn.Linear(64, 64), torch.randn(8, 64)
    want_BH = layer(x_BH)
    prepared = AcceleratedStrategy(1, "cpu").prepare(layer)
    assert torch.equal(prepared(x_BH), want_BH)


def test_shipped_strategies_satisfy_the_protocol() -> None:
    """Checked by pyright; at run time a second thread's collectives of one process answer for themselves."""
    strategies: list[Strategy] = [LocalStrategy(), AcceleratedStrategy(1, "cpu")]
    for strategy in strategies:
        group: Collectives = new_group(strategy, timeout_s=5.0)
        assert (group.rank, group.world_size) == (0, 1)
        assert group.gather_objects({"a": 1}) == [{"a": 1}]
        assert group.sum_over_ranks([1, 2]) == [1.0, 2.0]
        assert group.max_over_ranks(3) == 3
        group.barrier("nothing")


class TwoRanks(LocalStrategy):
    """Claims a second rank, and has collectives for a second thread of its own making."""

    world_size = 2

    def new_group(self, timeout_s: float) -> Collectives:
        self.timeout_s = timeout_s
        return self


def test_a_strategys_own_group_is_taken() -> None:
    strategy = TwoRanks()
    assert isinstance(strategy, GroupFactory)
    assert new_group(strategy, 7.0) is strategy
    assert strategy.timeout_s == 7.0


def test_without_collectives_no_group_is_made() -> None:
    group = new_group(TwoRanks(), 7.0, connect=False)
    assert isinstance(group, RankGroup)
    with pytest.raises(AssertionError, match="connect=False"):
        group.gather_objects(1)


def test_a_strategy_without_groups_gets_gloo(monkeypatch: pytest.MonkeyPatch) -> None:
    """As every third party's strategy did before ``new_group`` existed."""

    class Old:
        rank, world_size = 1, 2
        sum_over_ranks = max_over_ranks = gather_objects = barrier = None

    calls: list[dict[str, object]] = []
    monkeypatch.setattr(torch.distributed, "new_group", lambda **options: calls.append(options) or object())
    group = new_group(Old(), 7.0)  # type: ignore[arg-type]
    assert isinstance(group, RankGroup)
    assert (group.rank, group.world_size, calls[0]["backend"]) == (1, 2, "gloo")
