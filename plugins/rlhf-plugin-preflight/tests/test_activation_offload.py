"""What ``model.gradient_checkpointing=offload`` takes from the card, and puts into main memory."""

from __future__ import annotations

import pytest

from rlhf_core.config import BuildContext
from rlhf_plugin_preflight.memory.advice import OFFLOAD, accepted, changes
from rlhf_plugin_preflight.memory.backward import FIRST, HEAD
from rlhf_plugin_preflight.memory.footprint import Footprint, footprint
from rlhf_plugin_preflight.memory.plan import Placement, plan_for

from .test_rehearsal import SMALL, context


def planned(kept: str, on_cpu: bool = False) -> tuple[BuildContext, Footprint]:
    ctx = context("sft", *SMALL, "trainer.precision=fp32", f"model.gradient_checkpointing={kept}")
    return ctx, footprint(ctx, on_cpu=on_cpu, device=1 << 33)


@pytest.mark.slow
def test_inputs_of_layers_wait_in_main_memory() -> None:
    (_, here), (_, away) = planned("true"), planned("offload")
    tokens = sum(row.tokens - 1 for row in here.sizes.micro_batch)  # nothing follows the last one
    offloaded = away.update.offloaded
    assert (here.update.offloaded, offloaded) == (0, 4 * 160 * 4 * tokens), "of four layers, 160 wide, in float32"
    before, after = here.update.stages, away.update.stages
    assert before[HEAD].activations - after[HEAD].activations == offloaded
    assert before[FIRST].activations - after[FIRST].activations == offloaded * 3 // 4, "one is there again"
    plan = plan_for(away, Placement("single"), on_cpu=False)
    assert plan.phases["update"].host == {"offloaded activations": offloaded}
    assert plan_for(here, Placement("single"), on_cpu=False).host_peak == 0


@pytest.mark.parametrize("on_cpu", [False, True])
def test_it_is_advised_on_a_card_that_recomputes_already(on_cpu: bool) -> None:
    ctx, found = planned("true", on_cpu)
    (offload,) = (change for change in changes(ctx.config) if change.setting == OFFLOAD)
    assert accepted(ctx, found)(offload.make(ctx.config)) is not on_cpu
    assert OFFLOAD not in {change.setting for change in changes(planned("false", on_cpu)[0].config)}
