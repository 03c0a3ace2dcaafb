"""A reward model reads an episode as it was trained on conversations with calls and results."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from rlhf_core.data import PreferencePair, Prompt
from rlhf_core.models import ModelConfig, ModelError, load_tokenizer
from rlhf_core.rewards import Sample
from rlhf_core.rollouts import Turn
from rlhf_plugin_reward.encoding import Encoder, View
from rlhf_plugin_reward.pairs import encode_pairs

TOOLS: Any = ({"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}},)
ASKED = {"role": "user", "content": "2 + 2?"}
CALLING: Any = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "c0", "type": "function", "function": {"name": "add", "arguments": {"a": 2}}}],
}
RESULT = {"role": "tool", "content": "four it is", "tool_call_id": "c0", "name": "add"}
ANSWER = {"role": "assistant", "content": "It is 4."}


def encoder(turns: str = "all", template: str | None = "hermes") -> Encoder:
    return Encoder(load_tokenizer(ModelConfig(path="pocket", chat_template=template)), 999, View(turns))


def episode(*messages: Any) -> Sample:
    turns = tuple(Turn((n, n + 1), m["role"], m) for n, m in enumerate(messages))
    return Sample(Prompt("p", (ASKED,), tools=TOOLS), messages[-1]["content"], trajectory=turns)


def test_an_episode_is_read_as_its_conversation_was_trained() -> None:
    reader = encoder()
    pairs = [
        PreferencePair("a", (ASKED, CALLING, RESULT), "It is 4.", "No.", tools=TOOLS),
        PreferencePair("b", (ASKED,), "", "No.", tools=TOOLS, chosen_turn=CALLING),
    ]
    whole, cut = (item.chosen_ids for item in encode_pairs(pairs, reader, Counter()))
    assert reader.encode_sample(episode(CALLING, RESULT, ANSWER)) == whole
    assert reader.encode_sample(episode(CALLING)) == cut  # ended by its length, or by max_turns
    text = reader.formatter.tokenizer.decode(whole)
    assert all(part in text for part in ('"a": 2', "four it is", "It is 4.", '"name": "add"'))
    assert "<tool_call>" in reader.formatter.tokenizer.decode(cut)


def test_an_agents_rules_stand_once_and_first() -> None:
    """As the policy read them: `react` puts the prompt's own rules into its own."""
    reader, own, rules = encoder(), *({"role": "system", "content": c} for c in ("Be brief.", "Be brief. Use tools."))
    played = episode(rules, CALLING, RESULT, ANSWER)
    played = replace(played, prompt=Prompt("p", (own, ASKED), tools=TOOLS))
    assert reader.encode_sample(played) == reader.encode((rules, ASKED, CALLING, RESULT), "It is 4.", TOOLS)


def test_the_last_turn_begins_with_the_users() -> None:
    reader = encoder("last")
    earlier = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hello."}]
    long, short = (reader.encode((*before, ASKED, CALLING, RESULT), "It is 4.", TOOLS) for before in (earlier, ()))
    assert long == short


def test_a_model_that_cannot_read_calls_is_refused_by_name() -> None:
    environment = SimpleNamespace(name="lookup", offered=lambda: TOOLS)
    encoder().check_episodes("RM", environment)
    encoder(template=None).check_episodes("RM", None)
    with pytest.raises(ModelError, match="reward model 'RM' cannot read episodes of environment 'lookup'"):
        encoder(template=None).check_episodes("RM", environment)


def test_reasoning_before_the_last_call_breaks_no_batch() -> None:
    """hermes writes no reasoning; a policy may write `</think>` whatever its template knows."""
    reader = encoder()
    thought = {**CALLING, "reasoning": "hm"}
    assert reader.encode_sample(episode(thought)) == reader.encode_sample(episode(CALLING))
