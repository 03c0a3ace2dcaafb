"""The check of engines with weights of their own catches those that sample from others than they were sent."""

from __future__ import annotations

import copy

import pytest
import torch
from broken_receivers import ReceiverConfig
from peft import LoraConfig, get_peft_model

from rlhf_core.config import BuildContext
from rlhf_core.models import LoadedModel
from rlhf_testing import check_rollout, policy_context
from rlhf_testing.rollout_weights import trained_weights

NEW = "sampled from the new weights"
FAULTS = {
    "ignores": NEW,
    "keeps a layer": NEW,
    "changes them": "tensors that it is given alone",
    "policy": "leaves the policy alone",
    "old version": "policy version that was asked for",
    "any version": "other weights are asked for",
    "forgets": "kept the weights, completions are those of before",
    "says nothing": "whether the weights went",
    "ended twice": "each once",
    "copy": "the policy as it is now",
}
MORE_FAULTS = {"keeps the head": NEW, "keeps them": NEW}
"""Of a rule that another breaks already."""


@pytest.fixture(autouse=True)
def light(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the subprocess of the light-import check; it has a test of its own."""
    monkeypatch.setattr("rlhf_testing.config.check_light_import", lambda config: None)


def adapters() -> BuildContext:
    ctx = policy_context()
    model = get_peft_model(copy.deepcopy(ctx.policy.model), LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
    return ctx.with_(policy=LoadedModel(model, ctx.policy.tokenizer, ctx.policy.source, ctx.policy.context))


@pytest.mark.slow
def test_sound_ones_pass_and_the_policy_is_what_it_was() -> None:
    ctx = policy_context()
    before = trained_weights(ctx.policy.model)
    check_rollout(ReceiverConfig(in_flight=True), ctx)
    after = trained_weights(ctx.policy.model)
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


@pytest.mark.slow
@pytest.mark.parametrize("fault", [*FAULTS, *(pytest.param(name, marks=pytest.mark.long) for name in MORE_FAULTS)])
def test_a_broken_receiver(fault: str) -> None:
    with pytest.raises(AssertionError, match={**FAULTS, **MORE_FAULTS}[fault]):
        check_rollout(ReceiverConfig(fault=fault))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "rule"),
    [("asked version", "tokens of a version have its logprobs"), ("unknown version", "each was sent")],
)
def test_a_broken_receiver_in_flight(fault: str, rule: str) -> None:
    with pytest.raises(AssertionError, match=rule):
        check_rollout(ReceiverConfig(fault=fault, in_flight=True))


@pytest.mark.slow
def test_adapters_are_sent_alone() -> None:
    check_rollout(ReceiverConfig(), adapters())
    with pytest.raises(AssertionError, match=NEW):
        check_rollout(ReceiverConfig(fault="ignores"), adapters())
