"""How strategies share a footprint out; the numbers are worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from rlhf_core.types.errors import ConfigError
from rlhf_plugin_preflight.memory.backward import AFTER, FIRST, HEAD, LAST, OTHER, ROOT, SECOND, Held, Stage
from rlhf_plugin_preflight.memory.check import most_certain
from rlhf_plugin_preflight.memory.footprint import Footprint, ModelSize
from rlhf_plugin_preflight.memory.phase import COMPUTING
from rlhf_plugin_preflight.memory.plan import Placement, fewest_ranks, placement_of, plan_for
from rlhf_plugin_preflight.memory.sampling import Sampling
from rlhf_plugin_preflight.memory.sizes import Row, Sizes
from rlhf_plugin_preflight.memory.update import Update

MB = 10**6
MODEL = ModelSize(
    path="m", parameters=20 * MB, trained=20 * MB, layers=8, heads=8, kv_heads=4, weights=80 * MB, layer=8 * MB,
    root=16 * MB, context=512, largest=12 * MB,
)  # fmt: skip


def stage(activations: int, undivided: int) -> Stage:
    """With several micro-batches: gradients of those before are there, 80 MB."""
    held = Held(activations * MB, undivided * MB)
    return Stage(activations * MB, Held(activations * MB, 80 * MB), held)


STAGES = {
    HEAD: stage(34, 0), FIRST: stage(30, 8), SECOND: stage(26, 8), LAST: stage(2, 8), AFTER: stage(33, 0),
    ROOT: stage(0, 32),
}  # fmt: skip
FOUND = Footprint(
    model=MODEL,
    sizes=Sizes((Row(8, (8,)),), 2, (8,), 1, 8, "given"),
    reference=80 * MB,
    sampler=0,
    rewards=10 * MB,
    teacher=0,
    update=Update(
        {"weights": 80 * MB, "gradients": 80 * MB, "optimizer": 160 * MB, "activations": 34 * MB}, 80 * MB, 0, 0,
        STAGES, units=8, first_units=8, root=16 * MB,
    ),
    sampling=Sampling({}, {}, {"KV cache": 40 * MB}, 4, 16),
)  # fmt: skip
ONE_MICRO_BATCH = replace(FOUND, sizes=replace(FOUND.sizes, micro_batches=1))


def with_stage(name: str, one: Stage, found: Footprint = FOUND) -> Footprint:
    return replace(found, update=replace(found.update, stages={**STAGES, name: one}))


SMALL_BUCKET = 1
"""Elements."""


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
    assert phases(Placement("ddp", 4), on_cpu=False)["update"]["gradients"] == 80 * MB
    assert "gradients" not in phases(Placement("single"))["rollout"]
    assert phases(Placement("ddp", 4))["rollout"]["gradients"] == 80 * MB
    update = phases(Placement("ddp", 4), on_cpu=True)["update"]  # of several micro-batches: beside the buckets
    assert (update["gradients"], update["communication"]) == (80 * MB, 80 * MB)


def test_fsdp_shards_and_gathers_layers_and_root_group() -> None:
    update = phases(Placement("fsdp", 4))["update"]
    assert (update["weights"], update["gradients"], update["optimizer"]) == (20 * MB, 20 * MB, 40 * MB)
    assert (update["gathered units"], update["root group"]) == (16 * MB, 16 * MB)
    assert phases(Placement("fsdp", 4))["rollout"]["gathered units"] == 80 * MB  # the native engine needs all of it


def test_sharded_weights_are_written_one_by_one() -> None:
    for place in (Placement("fsdp", 4), Placement("hsdp", 4, 2), Placement("zero3", 4)):
        assert phases(place, on_cpu=True)["checkpoint"]["gathered weights"] == 12 * MB
    assert phases(Placement("fsdp", 4))["checkpoint"]["gathered weights"] == 12 * MB
    assert "gathered weights" not in phases(Placement("ddp", 4), on_cpu=True)["checkpoint"]
    adapters = replace(FOUND, model=replace(MODEL, merged=200 * MB, largest_merged=5 * MB))
    parts = plan_for(adapters, Placement("fsdp", 4), on_cpu=True).phases["checkpoint"].parts
    assert parts["gathered weights"] == 15 * MB
    assert "copies to be written" not in parts  # moments are written as they lie
    assert phases(Placement("zero3", 4), on_cpu=True)["checkpoint"]["copies to be written"] == 40 * MB
    parts = plan_for(adapters, Placement("ddp", 4), on_cpu=True).phases["checkpoint"].parts
    assert parts["copies to be written"] == 200 * MB
    converted = replace(FOUND, model=replace(MODEL, converted=True))  # transformers wants all of them at once
    parts = plan_for(converted, Placement("fsdp", 4), on_cpu=True).phases["checkpoint"].parts
    assert parts["gathered weights"] == 80 * MB


def test_stages_of_zero_shard_one_thing_more_each() -> None:
    one, two, three = (phases(Placement(name, 4))["update"] for name in ("zero1", "zero2", "zero3"))
    assert [p["optimizer"] // MB for p in (one, two, three)] == [40, 40, 40]
    assert [p["gradients"] // MB for p in (one, two, three)] == [80, 20, 20]
    assert [p["weights"] // MB for p in (one, two, three)] == [80, 80, 20]


def test_stages_of_zero_step_a_copy_that_is_divided() -> None:
    for name in ("zero1", "zero2", "zero3"):
        each = phases(Placement(name, 4))
        assert [each[phase]["stepped copy"] for phase in ("rollout", "update", "checkpoint")] == [20 * MB] * 3
    assert "stepped copy" not in phases(Placement("fsdp", 4))["update"]
    offloaded = plan_for(FOUND, Placement("zero2_offload", 4), on_cpu=False).phases["update"]
    assert offloaded.host["stepped copy"] == 20 * MB
    flat = phases(Placement("zero1", 4), on_cpu=True)["load"]  # the old weights and the new tensor
    assert (flat["weights"], flat["weights laid end to end"]) == (80 * MB, 80 * MB)


def test_stage_3_loads_by_parts_and_keeps_embedding_and_head_whole() -> None:
    """As fsdp does, and with what the optimizer needs, which is made before the reference is read."""
    assert phases(Placement("fsdp", 8))["load"] == {"weights": 10 * MB, "reference": 10 * MB, "rewards": 10 * MB}
    load = phases(Placement("zero3", 8))["load"]
    assert (load["weights"], load["reference"], load["root group"]) == (10 * MB, 10 * MB, 32 * MB)
    assert (load["stepped copy"], load["gradients"]) == (10 * MB, 10 * MB)
    assert load["reduce buffer"] == 200 * MB  # 50 million elements
    assert sum(load.values()) == (10 + 10 + 10 + 32 + 10 + 10 + 200) * MB
    offloaded = plan_for(FOUND, Placement("zero3_offload", 8), on_cpu=False).phases["load"]
    assert (offloaded.host["weights"], offloaded.host["stepped copy"]) == (10 * MB, 10 * MB)
    with_critic = replace(FOUND, update=replace(FOUND.update, critic=64 * MB))
    assert plan_for(with_critic, Placement("zero3", 8), on_cpu=True).phases["load"].parts["critic"] == 8 * MB
    assert phases(Placement("zero3", 8))["rollout"]["gathered units"] == 64 * MB  # all layers, beside the parts
    assert fewest_ranks(FOUND, "zero3", 195 * MB, 8, on_cpu=False, bucket=SMALL_BUCKET) == 16
    assert fewest_ranks(FOUND, "fsdp", 195 * MB, 8, on_cpu=False) == 8


@pytest.mark.parametrize(
    ("kind", "device", "host"),
    [(None, 10, 0), ("sharded", 10, 0), ("whole", 80, 0), ("offload", 0, 80)],
)
def test_a_reference_lies_where_the_setting_says(kind: str | None, device: int, host: int) -> None:
    plan = plan_for(replace(FOUND, reference_kind=kind), Placement("fsdp", 8), on_cpu=False)
    for phase in plan.phases.values():
        assert phase.parts.get("reference", 0) == device * MB
        assert phase.host.get("reference", 0) == host * MB
        assert phase.in_one_memory.parts.get("reference", 0) == (device + host) * MB
        assert COMPUTING not in phase.in_one_memory.parts
    small = replace(FOUND, sampling=None, reference_kind=kind)
    computing = plan_for(small, Placement("fsdp", 8), on_cpu=False).phases.get("rollout")
    assert (computing is not None) == (kind == "offload"), "it is on the device while it computes"
    assert computing is None or computing.parts[COMPUTING] == 80 * MB


def test_what_deepspeed_adds_over_ranks_at_once_is_counted() -> None:
    """Stage 1 joins gradients; stage 2 makes a buffer of the whole bucket for each update, stage 3 one for good."""
    assert phases(Placement("zero1", 4))["update"]["communication"] == 80 * MB  # there are no more gradients
    assert phases(Placement("zero1", 4, bucket=5 * MB))["update"]["communication"] == 20 * MB
    assert phases(Placement("zero2", 4))["update"]["communication"] == 200 * MB
    assert phases(Placement("zero2", 4, bucket=5 * MB))["update"]["communication"] == 20 * MB
    third = plan_for(FOUND, Placement("zero3_offload", 4, bucket=5 * MB), on_cpu=False).phases
    assert [third[name].parts["reduce buffer"] for name in ("rollout", "update", "checkpoint")] == [20 * MB] * 3
    assert all("reduce buffer" not in phases(Placement(name, 4))["update"] for name in ("fsdp", "zero2", "ddp"))
    few = {size: fewest_ranks(FOUND, "zero2", 400 * MB, 8, on_cpu=False, bucket=size) for size in (MB, 50 * MB)}
    assert few[MB] is not None
    assert few[50 * MB] is None


def test_weights_that_do_not_lie_by_parts_are_loaded_whole() -> None:
    whole = replace(FOUND, model=replace(MODEL, by_parts=False))
    for name in ("zero3", "zero3_offload", "zero3_offload_moments"):
        undivided = plan_for(whole, Placement(name, 8, bucket=SMALL_BUCKET), on_cpu=False).phases["load"]
        assert undivided.parts == {"weights": 80 * MB, "reference": 80 * MB, "rewards": 10 * MB}
        assert not undivided.host
    divided = plan_for(whole, Placement("zero3", 2), on_cpu=False).phases["load"].parts  # the reference is whole still
    assert (divided["weights"], divided["reference"], divided["root group"]) == (40 * MB, 80 * MB, 32 * MB)
    assert (divided["stepped copy"], divided["gradients"]) == (40 * MB, 40 * MB)
    assert fewest_ranks(whole, "zero3", 165 * MB, 8, on_cpu=False) is None
    load = plan_for(whole, Placement("fsdp", 8), on_cpu=True).phases["load"].parts
    assert load == {"weights": 80 * MB, "reference": 80 * MB, "rewards": 10 * MB}
    assert plan_for(whole, Placement("fsdp", 8), on_cpu=True).phases["update"].parts["weights"] == 10 * MB
    assert fewest_ranks(whole, "fsdp", 165 * MB, 8, on_cpu=False) is None


def test_a_sharded_update_is_planned_at_the_stage_where_most_is_held() -> None:
    place = Placement("fsdp", 4)
    update = phases(place)["update"]  # a layer, the next one, its gradients, and flat ones of the layer before
    assert (update["activations"], update["gathered units"], update["communication"]) == (26 * MB, 16 * MB, 16 * MB)
    head = plan_for(with_stage(HEAD, stage(800, 0)), place, on_cpu=True).phases["update"].parts
    assert (head["activations"], head["gathered units"]) == (800 * MB, 8 * MB)  # a layer is on its way
    assert "communication" not in head
    assert head["root group"] == 16 * MB
    after = plan_for(with_stage(AFTER, stage(90, 0)), place, on_cpu=True).phases["update"].parts
    assert (after["communication"], "gathered units" in after) == (8 * MB, False)
    end = plan_for(with_stage(ROOT, stage(0, 90)), place, on_cpu=True).phases["update"].parts
    assert (end["communication"], end["gradients"]) == (90 * MB, 20 * MB)


def test_of_one_micro_batch_only_gradients_of_layers_that_were_passed_are_there() -> None:
    update = plan_for(ONE_MICRO_BATCH, Placement("fsdp", 4), on_cpu=True).phases["update"].parts
    assert (update["gradients"], update["activations"]) == (8 * MB // 4, 26 * MB)
    late = with_stage(LAST, stage(60, 8), ONE_MICRO_BATCH)
    assert plan_for(late, Placement("fsdp", 4), on_cpu=True).phases["update"].parts["gradients"] == 7 * 8 * MB // 4
    first = Stage(60 * MB, Held(60 * MB, 5 * MB), Held(60 * MB, 5 * MB))
    heavy = with_stage(FIRST, Stage(900 * MB, Held(900 * MB, 5 * MB), first.undivided), ONE_MICRO_BATCH)
    single = plan_for(heavy, Placement("single"), on_cpu=True).phases["update"].parts
    assert (single["gradients"], single["activations"]) == (5 * MB, 900 * MB)
    assert plan_for(heavy, Placement("ddp", 4), on_cpu=True).phases["update"].parts["gradients"] == 80 * MB  # buckets
    plan = plan_for(heavy, Placement("single"), on_cpu=True)
    assert most_certain(plan).size == (80 + 80 + 10 + 160 + 80) * MB  # all gradients are there at the end
    unsampled = replace(heavy, sampling=None)
    assert (
        most_certain(plan_for(unsampled, Placement("fsdp", 4), on_cpu=True)).size == (20 + 20 + 10 + 40 + 20 + 16) * MB
    )


def test_gradients_beside_the_buckets_of_ddp_go_layer_by_layer() -> None:
    place = Placement("ddp", 4)
    for name, beside in ((FIRST, 80), (SECOND, 72), (LAST, 24), (AFTER, 16)):
        found = with_stage(name, stage(800, 0))
        assert plan_for(found, place, on_cpu=True).phases["update"].parts["communication"] == beside * MB, name


def test_a_critic_has_a_head_layers_and_a_root_of_its_own() -> None:
    between = stage(300, 16)
    update = replace(FOUND.update, critic=80 * MB, units=16, first_units=8, trained=160 * MB, root=32 * MB)
    critic = replace(ONE_MICRO_BATCH, update=replace(update, stages={**STAGES, OTHER: between}))
    plan = plan_for(critic, Placement("fsdp", 4), on_cpu=True)
    parts = plan.phases["update"].parts
    assert (parts["root group"], parts["gathered units"]) == (32 * MB, 8 * MB)
    assert parts["communication"] == (16 + 8) * MB  # the critic's root, and its last layer
    assert parts["gradients"] == 8 * 8 * MB // 4
    assert plan.phases["rollout"].parts["gathered units"] == 160 * MB  # the critic's too


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


def test_layers_that_ranks_divide_are_counted_by_their_parts() -> None:
    """Two ranks have 42 of 80 MB each: of 64 MB in layers 4 are norms, on both, like the root's 16."""
    part = replace(MODEL, weights=50 * MB, layer=5 * MB)
    update = replace(FOUND.update, trained=50 * MB, parts={**FOUND.update.parts, "optimizer": 100 * MB})
    found = replace(FOUND, tensor=2, part=part, update=update)
    plan = plan_for(found, Placement("fsdp", 8, tensor=2), on_cpu=True)
    parts = plan.phases["update"].parts
    assert plan.placement.ranks == 8
    assert (parts["weights"], parts["reference"], parts["optimizer"]) == (12.5 * MB, 12.5 * MB, 25 * MB)
    assert (parts["gathered units"], parts["root group"]) == (10 * MB, 16 * MB)
    assert parts["activations"] == 26 * MB, "they were rehearsed on a rank's part"
    assert plan.phases["rollout"].parts["gathered units"] == (50 + 60) * MB, "the part, and whole weights made of parts"
    assert plan.phases["checkpoint"].parts["gathered weights"] == 12 * MB
    whole = replace(found, reference_kind="whole", model=replace(MODEL, by_parts=False))
    load = plan_for(whole, Placement("fsdp", 8, tensor=2), on_cpu=True).phases["load"].parts
    assert (load["weights"], load["reference"]) == (80 * MB, 80 * MB)
    alone = plan_for(found, Placement("fsdp", 2, tensor=2), on_cpu=True).phases["update"].parts
    assert (alone["weights"], alone["gathered units"]) == (50 * MB, 5 * MB), "one rank gathers no layer ahead"


@pytest.mark.parametrize(
    ("place", "why"),
    [
        (Placement("single", 2), "one rank"),
        (Placement("fsdp", 6, tensor=4), "does not divide 6 ranks"),
        (Placement("fsdp", 8, tensor=8), "heads of keys"),
        (Placement("fsdp", 16, pipeline=16), "more than the 8 layers"),
        (Placement("hsdp", 12, 8), "not whole nodes"),
    ],
)
def test_impossible_splits_are_refused(place: Placement, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        plan_for(FOUND, place, on_cpu=False)


def test_fewest_cards_that_fit() -> None:
    assert fewest_ranks(FOUND, "fsdp", 520 * MB, 8, on_cpu=False) == 1
    assert fewest_ranks(FOUND, "fsdp", 250 * MB, 8, on_cpu=False) == 4
    assert fewest_ranks(FOUND, "ddp", 250 * MB, 8, on_cpu=False) is None
    bigger = replace(FOUND, model=replace(MODEL, root=400 * MB))
    assert fewest_ranks(bigger, "fsdp", 250 * MB, 8, on_cpu=False) is None  # the root group is gathered whole


@pytest.mark.parametrize(
    ("ranks", "settings", "place"),
    [
        (1, {"name": "fsdp"}, Placement("single")),
        (4, {"name": "ddp"}, Placement("ddp", 4, 4)),
        (4, {"name": "fsdp"}, Placement("fsdp", 4, 4)),
        (4, {"name": "fsdp", "shard_size": 2}, Placement("hsdp", 4, 2)),
        (4, {"name": "fsdp", "shard_size": None, "offload": True}, Placement("fsdp_offload", 4, 4)),
        (4, {"name": "fsdp", "tensor_parallel": 2}, Placement("fsdp", 4, 4, tensor=2)),
        (4, {"name": "auto"}, Placement("ddp", 4, 4)),
        (4, {"name": "of_a_plugin"}, Placement("ddp", 4, 4)),
        (4, {"name": "deepspeed", "planned_as": "zero2", "bucket": 7}, Placement("zero2", 4, 4, bucket=7)),
    ],
)
def test_a_run_is_planned_for_its_own_strategy(ranks: int, settings: dict[str, Any], place: Placement) -> None:
    run = SimpleNamespace(strategy=SimpleNamespace(**settings))
    ctx: Any = SimpleNamespace(world_size=ranks, config=run)
    assert placement_of(ctx) == place


def test_to_sample_all_weights_are_certain_to_be_gathered() -> None:
    plan = plan_for(ONE_MICRO_BATCH, Placement("fsdp", 16), on_cpu=False)
    name, phase, size = most_certain(plan)
    assert (name, phase) == ("rollout", plan.phases["rollout"])
    assert size == (5 + 5 + 10 + 10 + 80) * MB  # weights, reference, rewards, moments; the cache is not certain
    assert most_certain(plan).size == size
    not_sampled = replace(ONE_MICRO_BATCH, sampling=None)
    assert most_certain(plan_for(not_sampled, Placement("fsdp", 16), on_cpu=False)).name == "update"


@pytest.mark.parametrize(
    ("name", "host"),
    [
        ("fsdp_offload", {"weights": 20, "reference": 20, "optimizer": 40, "gradients on the host": 20}),
        ("zero1_offload", {"optimizer": 40, "stepped copy": 20, "gradients on the host": 40}),
        ("zero2_offload", {"optimizer": 40, "stepped copy": 20, "gradients on the host": 60}),
        ("zero3_offload_moments", {"optimizer": 40, "stepped copy": 20, "gradients on the host": 40}),
    ],
)
def test_what_is_offloaded_lies_in_main_memory(name: Any, host: dict[str, int]) -> None:
    plan = plan_for(FOUND, Placement(name, 4), on_cpu=False)
    assert plan.phases["update"].host == {part: size * MB for part, size in host.items()}
    assert plan.host_peak == plan.on_host.peak == sum(host.values()) * MB
    merged = plan.in_one_memory
    assert merged.phases["update"].total == plan.phases["update"].total + plan.host_peak
    assert merged.host_peak == 0
