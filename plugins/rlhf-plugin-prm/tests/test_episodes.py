"""Models of steps see tools and results; credit per step of an episode is another advantage's."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from rlhf_core.api import ConfigError, ModelConfig, Prompt, Sample, Turn
from rlhf_core.sdk import load_tokenizer
from rlhf_core.testing import make_context
from rlhf_plugin_prm.examples import read_solutions
from rlhf_plugin_prm.net import StepEncoder, encode_solutions
from rlhf_plugin_prm.reward import StepReward
from rlhf_plugin_prm.reward_config import PrmRewardConfig, StepAdvantageConfig

TOOLS: Any = ({"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}},)
ASKED = {"role": "user", "content": "2 + 2?"}
RESULT = {"role": "tool", "content": "four it is", "tool_call_id": "c0", "name": "add"}
CALLING: Any = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "c0", "type": "function", "function": {"name": "add", "arguments": {"a": 2}}}],
}
STEPS = "It says 4.\nSo 4."


@pytest.fixture(scope="module")
def encoder() -> StepEncoder:
    return StepEncoder(load_tokenizer(ModelConfig(path="pocket", chat_template="hermes")), 999)


def test_solutions_are_trained_and_scored_with_tools_and_results(encoder: StepEncoder) -> None:
    row = Prompt("p", (ASKED, CALLING, RESULT), meta={"completion": STEPS, "labels": [True, False]}, tools=TOOLS)
    (item,) = encode_solutions(read_solutions([row], "newline", str), encoder, "steps", False, Counter())
    text = encoder.tokenizer.decode(item.ids)
    assert all(part in text for part in ('"name": "add"', '"a": 2', "four it is", "So 4."))
    turns = tuple(
        Turn((n, n + 1), m["role"], m) for n, m in enumerate([CALLING, RESULT, {"role": "assistant", "content": STEPS}])
    )
    sample = Sample(Prompt("p", (ASKED,), tools=TOOLS), STEPS, trajectory=turns)
    seen: list[Any] = []

    class Reward(StepReward):
        def probabilities(self, queries: Any) -> Any:
            seen.extend(self.encoder.encode(*query) for query in queries)
            return ["not asked"] * len(queries)

    net: Any = None
    Reward(net, encoder, PrmRewardConfig(path="x", split="newline"), every_step=True).score([sample])
    assert seen[0][:2] == (item.ids, item.places_T)


def test_credit_per_step_is_refused_in_an_environment() -> None:
    config = SimpleNamespace(environment=SimpleNamespace(name="lookup"), trainer=None)
    with pytest.raises(ConfigError, match="advantage 'step' cannot be used in environment 'lookup'"):
        StepAdvantageConfig().preflight(make_context(config=config))
