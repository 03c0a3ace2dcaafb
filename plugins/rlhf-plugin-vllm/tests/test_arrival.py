"""The canary finds engines that did not take an update, whatever they compute in, and accepts those that did."""

from __future__ import annotations

import copy
import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.config import BuildContext
from rlhf_core.models.precision import set_precision
from rlhf_plugin_vllm.arrival import CanaryToken, UpdateCheck
from rlhf_plugin_vllm.canary import Canary

_spec = importlib.util.spec_from_file_location("canary_figures", Path(__file__).with_name("canary_figures.py"))
assert _spec is not None
assert _spec.loader is not None
figures: Any = importlib.util.module_from_spec(_spec)
sys.modules["canary_figures"] = figures
_spec.loader.exec_module(figures)
BOTH = pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
SMALL, LARGE = figures.Updates(1e-5, same_way=True), figures.Updates(3e-4, same_way=True)


def refused(ctx: BuildContext, dtype: str, kept: str, updates: Any, most: int) -> int | None:
    return figures.first_refused(ctx, figures.Engine(ctx, dtype, figures.KEPT[kept]), updates, most)


@pytest.mark.slow
@BOTH
def test_an_engine_that_takes_every_small_update_is_accepted(ctx: BuildContext, dtype: str) -> None:
    assert refused(ctx, dtype, "nothing", SMALL, 12) is None


@BOTH
@pytest.mark.slow
@pytest.mark.long  # twelve of them: above
@pytest.mark.parametrize("same_way", [True, False])
def test_two_hundred_small_updates_give_no_false_alarm(ctx: BuildContext, dtype: str, same_way: bool) -> None:
    assert refused(ctx, dtype, "nothing", figures.Updates(1e-5, same_way), 200) is None


@BOTH
@pytest.mark.parametrize("updates", [SMALL, LARGE])
def test_an_update_that_is_ignored_is_found_at_once(ctx: BuildContext, dtype: str, updates: Any) -> None:
    assert refused(ctx, dtype, "everything", updates, 3) == 1


@pytest.mark.parametrize("kept", ["head", "embedding", "one layer"])
def test_in_float32_a_part_that_is_kept_is_found_at_once(ctx: BuildContext, kept: str) -> None:
    assert refused(ctx, "float32", kept, SMALL, 3) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "kept", ["head", *(pytest.param(k, marks=pytest.mark.long) for k in ("embedding", "one layer"))]
)
def test_in_bfloat16_a_part_that_is_kept_is_found_when_what_it_changes_lasts(ctx: BuildContext, kept: str) -> None:
    version = refused(ctx, "bfloat16", kept, LARGE, 30)
    assert version is not None
    assert version > 1, "one update of it is as small as rounding"


def token(place: int, engine: float, trainer: float) -> CanaryToken:
    return CanaryToken((place,), 0, engine, trainer, 1.0)


def version(engine: float, trainer: float) -> list[CanaryToken]:
    """Sixteen tokens that differ from zero by so much, up and down in turn."""
    return [token(n, engine * (-1) ** n, trainer * (-1) ** n) for n in range(16)]


def test_changes_below_the_noise_add_up_until_an_engine_that_stands_still_is_found() -> None:
    arrival = UpdateCheck(version(0.01, 0.0), 5e-4)
    assert arrival.noise == pytest.approx(0.01)
    seen = [arrival.missing(version(0.01, 0.001 * step)) for step in range(1, 8)]
    assert seen[:4] == [""] * 4
    assert "an earlier version" in seen[4]


def test_an_engine_that_answers_at_random_is_found_by_what_it_is_nearer_to() -> None:
    arrival = UpdateCheck(version(0.01, 0.0), 5e-4)
    seen = [arrival.missing(version(0.01 * (1 + step % 2), 0.02 * step), any_noise=True) for step in range(1, 8)]
    assert seen[:4] == [""] * 4
    assert "nearer to those of an earlier version" in next(filter(None, seen))


def test_one_token_that_changed_says_nothing() -> None:
    arrival = UpdateCheck(version(0.01, 0.0), 5e-4)
    assert arrival.missing([token(0, 0.01, 0.3), *version(0.01, 0.0)[1:]], any_noise=True) == ""


def test_a_difference_that_grows_beyond_rounding_is_found() -> None:
    arrival = UpdateCheck(version(0.01, 0.0), 5e-4)
    assert "times as much as with the first version" in arrival.missing(version(0.1, 0.0))
    assert arrival.missing(version(0.1, 0.0), any_noise=True) == ""


def test_the_canary_computes_in_the_number_type_of_the_engine(ctx: BuildContext) -> None:
    engine = figures.Engine(ctx, "float32")
    policy = replace(ctx.policy, model=copy.deepcopy(ctx.policy.model))  # other tests have the same
    set_precision(policy.model, "bf16")
    canary = Canary(policy, policy.context, 1.0)
    weights = {name: p.detach() for name, p in policy.model.named_parameters()}
    sent = figures.Sent("engine", "float32", 0, weights, first=True)
    assert canary.check(sent, engine.answers(canary), None) < 1e-4
    assert "compute_dtype" in policy.model.model.__dict__, "the policy itself stays as it is"
