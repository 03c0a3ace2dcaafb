"""How strategies share a footprint out; the numbers are worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from rlhf_core.errors import ConfigError
from rlhf_core.memory.check import placement_of
from rlhf_core.memory.footprint import Footprint, ModelSize
from rlhf_core.memory.layouts import LAYOUTS
from rlhf_core.memory.plan import Placement, fewest_ranks, plan_for
from rlhf_core.memory.sampling import Sampling
from rlhf_core.memory.sizes import Row, Sizes
from rlhf_core.memory.update import Update

MB = 10**6
MODEL = ModelSize(
    path="m", parameters=20 * MB, trained=20 * MB, layers=8, heads=8, kv_heads=4, weights=80 * MB, layer=8 * MB,
    root=16 * MB, context=512,
)  # fmt: skip
FOUND = Footprint(
    model=MODEL,
    sizes=Sizes((Row(8, (8,)),), 2, (8,), 1, 8, "given"),
    reference=80 * MB,
    sampler=0,
    rewards=10 * MB,
    update=Update(
        {"weights": 80 * MB, "gradients": 80 * MB, "optimizer": 160 * MB, "activations": 34 * MB}, 80 * MB, 0, 0
    ),
    sampling=Sampling({"KV cache": 40 * MB}, 4, 16),
)


def phases(place: Placement, on_cpu: bool = False) -> dict[str, dict[str, int]]:
    return {name: phase.parts for name, phase in plan_for(FOUND, place, on_cpu=on_cpu).phases.items()}


def test_one_process_holds_everything() -> None:
    single = phases(Placement("single"), on_cpu=True)
    assert single["load"] == {"weights": 80 * MB, "reference": 80 * MB, "rewards": 10 * MB}
    assert sum(single["update"].values()) == (80 + 80 + 10 + 80 + 160 + 34) * MB
    assert single["rollout"]["KV cache"] == 40 * MB
    assert single["rollout"]["optimizer"] == 160 * MB
    assert single["checkpoint"]["copies to be written"] == 160 * MB
    merging = replace(FOUND, model=replace(MODEL, merged=200 * MB))  # the final model of a run with adapters
    parts = plan_for(merging, Placement("single"), on_cpu=True).phases["checkpoint"].parts
    assert parts["copies to be written"] == 200 * MB


def test_gradients_stay_in_the_buckets_of_ddp() -> None:
    assert "gradients" not in phases(Placement("single"))["rollout"]
    assert phases(Placement("ddp", 4))["rollout"]["gradients"] == 80 * MB
    update = phases(Placement("ddp", 4), on_cpu=True)["update"]  # of several micro-batches: beside the buckets
    assert (update["gradients"], update["communication"]) == (80 * MB, 80 * MB)


def test_fsdp_shards_and_gathers_layers_and_root_group() -> None:
    update = phases(Placement("fsdp", 4))["update"]
    assert (update["weights"], update["gradients"], update["optimizer"]) == (20 * MB, 20 * MB, 40 * MB)
    assert (update["gathered units"], update["root group"]) == (16 * MB, 16 * MB)
    assert phases(Placement("fsdp", 4))["rollout"]["gathered units"] == 60 * MB  # the native engine needs all of it


def test_stages_of_zero_shard_one_thing_more_each() -> None:
    one, two, three = (phases(Placement(name, 4))["update"] for name in ("zero1", "zero2", "zero3"))
    assert [p["optimizer"] // MB for p in (one, two, three)] == [40, 40, 40]
    assert [p["gradients"] // MB for p in (one, two, three)] == [80, 20, 20]
    assert [p["weights"] // MB for p in (one, two, three)] == [80, 80, 20]


def test_hsdp_shards_within_a_node() -> None:
    assert phases(Placement("hsdp", 8, 2))["update"]["weights"] == 40 * MB


def test_offload_moves_weights_and_moments_to_the_host() -> None:
    plan = plan_for(FOUND, Placement("fsdp_offload", 4), on_cpu=False)
    assert "optimizer" not in plan.phases["update"].parts
    assert plan.phases["update"].host["optimizer"] == 40 * MB


def test_splits_are_estimated_by_their_shares() -> None:
    update = phases(Placement("ddp", 4, tensor=2, pipeline=2), on_cpu=True)["update"]
    assert update["weights"] == 20 * MB
    assert update["activations"] == 22 * MB


@pytest.mark.parametrize(
    ("place", "why"),
    [
        (Placement("single", 2), "one rank"),
        (Placement("fsdp", 6, tensor=4), "does not divide 6 ranks"),
        (Placement("fsdp", 8, tensor=8), "heads of keys"),
        (Placement("fsdp", 16, pipeline=16), "more than the 8 layers"),
        (Placement("hsdp", 12, 8), "no whole nodes"),
    ],
)
def test_impossible_splits_are_refused(place: Placement, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        plan_for(FOUND, place, on_cpu=False)


def test_fewest_cards_that_fit() -> None:
    assert fewest_ranks(FOUND, "fsdp", 500 * MB, 8, on_cpu=False) == 1
    assert fewest_ranks(FOUND, "fsdp", 250 * MB, 8, on_cpu=False) == 4
    assert fewest_ranks(FOUND, "ddp", 250 * MB, 8, on_cpu=False) is None
    bigger = replace(FOUND, model=replace(MODEL, root=400 * MB))
    assert fewest_ranks(bigger, "fsdp", 250 * MB, 8, on_cpu=False) is None  # the root group is gathered whole


def test_bytes_of_a_parameter_in_each_layout() -> None:
    assert [layout.total for layout in LAYOUTS] == [16, 18, 8, 18]


@pytest.mark.parametrize(
    ("ranks", "settings", "place"),
    [
        (1, {"name": "fsdp"}, Placement("single")),
        (4, {"name": "ddp"}, Placement("ddp", 4, 4)),
        (4, {"name": "fsdp"}, Placement("fsdp", 4, 4)),
        (4, {"name": "fsdp", "shard_size": 2}, Placement("hsdp", 4, 2)),
        (4, {"name": "fsdp", "shard_size": None, "offload": True}, Placement("fsdp_offload", 4, 4)),
        (4, {"name": "auto"}, Placement("ddp", 4, 4)),
        (4, {"name": "of_a_plugin"}, Placement("ddp", 4, 4)),
    ],
)
def test_a_run_is_planned_for_its_own_strategy(ranks: int, settings: dict[str, Any], place: Placement) -> None:
    run = SimpleNamespace(strategy=SimpleNamespace(**settings))
    ctx: Any = SimpleNamespace(world_size=ranks, config=run)
    assert placement_of(ctx) == place
