"""Models of steps see tools and results; credit per step of an episode is another advantage's."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rlhf_core.config import ConfigError
from rlhf_core.data import Prompt
from rlhf_core.models import ModelConfig, ModelError, load_policy, load_tokenizer
from rlhf_core.rewards import Sample, Score
from rlhf_core.rollouts import Turn
from rlhf_plugin_prm.examples import read_solutions
from rlhf_plugin_prm.net import StepEncoder, encode_solutions
from rlhf_plugin_prm.reward import StepReward
from rlhf_plugin_prm.reward_config import PrmRewardConfig, StepAdvantageConfig
from rlhf_plugin_prm.store import save_model
from rlhf_plugin_reward.net import fresh_net
from rlhf_testing import make_context

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


def test_all_turns_of_an_episode_are_scored_and_one_without_an_answer_is_not_right(encoder: StepEncoder) -> None:
    talking = {**CALLING, "content": "Two and two.\nI add."}
    answer = {"role": "assistant", "content": STEPS}
    read: list[tuple[str, str]] = []

    class Reward(StepReward):
        def probabilities(self, queries: Any) -> Any:
            read.extend((encoder.tokenizer.decode(encoder.encode(*query)[0]), query[1]) for query in queries)
            return [np.linspace(0.9, 0.8, len(query[2])) for query in queries]

    def score(*messages: Any, every_step: bool = True) -> Score:
        turns = tuple(Turn((n, n + 1), m["role"], m) for n, m in enumerate(messages))
        sample = Sample(Prompt("p", (ASKED,), tools=TOOLS), messages[-1]["content"], trajectory=turns)
        net: Any = None
        return Reward(net, encoder, PrmRewardConfig(path="x", split="newline"), every_step).score([sample])[0]

    whole = score(talking, RESULT, CALLING, RESULT, answer)
    assert [whole.parts[f"step_{n}"] for n in (1, 2, 3, 4)] == pytest.approx([0.9, 0.8, 0.9, 0.8])
    assert [text for _, text in read] == ["Two and two.\nI add.", STEPS]
    assert "four it is" not in read[0][0]
    assert read[1][0].count("four it is") == 2
    cut = score(talking, RESULT, CALLING)
    assert (cut.value, cut.parts["step_3"], cut.detail) == (0.0, 0.0, "the episode ended without an answer")
    assert score(CALLING, every_step=False).value == 0.0
    adding = {**CALLING, "content": "I will add."}
    assert score(adding).parts == pytest.approx({"step_1": 0.9, "end_1": 11.0, "step_2": 0.0, "end_2": 0.0})
    assert score(adding, every_step=False).parts == {"step_1": 0.0, "end_1": 0.0}
    read.clear()
    rules = {"role": "system", "content": "Use the tools."}
    score(rules, talking, RESULT, {**rules, "content": "Answer from the facts."}, answer)
    places = [text.index(words) for (text, _), words in zip(read, ("Use the", "Answer from"))]
    assert places[0] == places[1], "they stand first"
    assert "Use the tools." not in read[1][0], "the rules that the policy read for this turn, and no others"
    read.clear()
    assert score(talking, RESULT, answer, every_step=False).value == pytest.approx(0.9)
    assert len(read) == 1, "an outcome model reads its last step alone"


def test_a_model_that_cannot_read_calls_is_refused_before_sampling(tmp_path: Path) -> None:
    policy = load_policy(ModelConfig(path="pocket"))
    save_model(
        fresh_net(policy, 1, 0, "none", copy_trunk=False), policy.tokenizer, tmp_path / "prm", "steps", "newline"
    )
    environment = SimpleNamespace(name="lookup", offered=lambda: TOOLS)
    for chosen in (None, environment):
        ctx = make_context(config=SimpleNamespace(environment=chosen), policy=policy)
        with (
            pytest.raises(ModelError, match="cannot read episodes of environment 'lookup'") if chosen else nullcontext()
        ):
            PrmRewardConfig(path=str(tmp_path / "prm")).build(ctx)


def test_credit_per_step_is_refused_in_an_environment() -> None:
    config = SimpleNamespace(environment=SimpleNamespace(name="lookup"), trainer=None)
    with pytest.raises(ConfigError, match="advantage 'step' cannot be used in environment 'lookup'"):
        StepAdvantageConfig().preflight(make_context(config=config))
