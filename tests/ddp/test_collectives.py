"""How often two ranks exchange something in one update, and what they hold between updates."""

from __future__ import annotations

import pytest

from scripts.bench.sharding import on_two_ranks

MICRO_BATCHES = 2


@pytest.mark.slow
def test_fsdp_exchanges_each_unit_as_often_as_it_must_and_nothing_else() -> None:
    found = on_two_ranks("pocket", (4, 8, 8, MICRO_BATCHES), 1)
    ddp, fsdp, layers = found["collectives"]["ddp"], found["collectives"]["fsdp"], found["layers"]
    units = layers + 1  # the root is one, and stays whole between forward and backward
    assert fsdp["all_gather"] - ddp["all_gather"] == MICRO_BATCHES * (layers + units)
    assert fsdp["all_reduce"] == MICRO_BATCHES * units + 2  # of metrics, and of the norm
    assert ddp["all_reduce"] == 3  # gradients once, whatever the micro-batches
    assert ddp["all_gather"] <= 6
    assert fsdp.keys() == {"all_gather", "all_reduce"}
    assert found["static_bytes"]["fsdp"] <= 0.51 * found["static_bytes"]["ddp"]
