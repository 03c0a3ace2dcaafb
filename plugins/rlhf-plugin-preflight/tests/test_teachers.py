"""Plans of runs with a teacher, and of runs that learn from their own pairs."""

from __future__ import annotations

import pytest

from rlhf_core.models.load import load_policy
from rlhf_core.types.errors import ConfigError
from rlhf_plugin_preflight.memory.footprint import footprint
from rlhf_plugin_preflight.memory.plan import Placement, plan_for
from rlhf_plugin_preflight.memory.sizes import sizes_of
from rlhf_plugin_preflight.memory.unknown import Unknown, without_values
from rlhf_plugin_preflight.memory.update import rehearse
from rlhf_plugin_preflight.memory.weightless import meta_model

from .test_rehearsal import SMALL, context

DISTILL = ("trainer.teacher=pocket", "dataset.limit=40")
SAMPLED = (*DISTILL, "trainer.rollout_batch_size=4", "trainer.micro_batch_size=2", "trainer.sampling.max_tokens=8")
OF_PAIRS = (
    "trainer.rollout_batch_size=16", "trainer.pair_batch_size=4", "trainer.micro_batch_size=2",
    "trainer.sampling.max_tokens=8", "dataset.limit=40",
)  # fmt: skip
OTHER_TOKENS = "trainer.teacher.tokenizer=other"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algo", "settings"),
    [
        ("distill", SAMPLED),
        ("distill", (*SAMPLED[1:], "trainer.teacher=http://127.0.0.1:1")),
        ("distill", (*SAMPLED[1:], "trainer.teacher.path=pocket", OTHER_TOKENS)),
        ("distill_offline", (*DISTILL, *SMALL)),
        ("iterative_dpo", OF_PAIRS),
    ],
)
def test_updates_beside_a_teacher_and_on_own_pairs_hold_what_real_ones_hold(
    algo: str, settings: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx = context(algo, *settings)
    policy = load_policy(ctx.config.model)
    sizes = sizes_of(ctx.config, ctx, policy.context)
    assert "of the data" in sizes.source
    assert (len(sizes.micro_batch), sizes.micro_batches) == (2, 2)
    assert all(len(row.replies) == (2 if algo == "iterative_dpo" else 1) for row in sizes.micro_batch)
    with monkeypatch.context() as whole:  # a teacher with its weights and all its layers
        whole.setattr("rlhf_plugin_preflight.memory.weightless.meta_model", lambda config, _: load_policy(config))
        real = rehearse(ctx.with_(policy=policy), sizes, Unknown())
    with without_values() as unknown:
        planned = rehearse(ctx.with_(policy=meta_model(ctx.config.model)), sizes, unknown)
    own, planned_own = ({name: size for name, size in u.parts.items() if name != "teacher"} for u in (real, planned))
    assert sum(planned_own.values()) == pytest.approx(sum(own.values()), rel=0.01)
    assert planned.parts["weights"] == pytest.approx(planned.trained, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(("teacher", "whole"), [("pocket", True), ("http://127.0.0.1:1", False)])
def test_a_teacher_is_whole_on_every_rank_and_a_served_one_costs_nothing(teacher: str, whole: bool) -> None:
    held = footprint(context("distill", *SAMPLED[1:], f"trainer.teacher={teacher}"), on_cpu=False, device=1 << 30)
    assert held.teacher == whole * held.model.weights
    for phase in plan_for(held, Placement("fsdp", 8), on_cpu=False).phases.values():
        assert phase.parts.get("teacher", 0) == held.teacher


def test_a_run_without_a_teacher_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="distillation needs a teacher"):
        footprint(context("distill", *SAMPLED[1:]), on_cpu=True)
