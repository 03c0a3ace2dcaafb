"""Agents that are programs: contexts that go on or begin anew, what is sampled together, and who is at fault."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from rlhf_core.data import ToolCall
from rlhf_core.rewards import Score, ScoreStatus
from rlhf_core.training.generation import check_episode
from rlhf_core.training.rollout_batch import TrainingSample
from rlhf_core.types.errors import ConfigError, PluginError
from rlhf_plugin_episodes.agent_config import EpisodeAgentConfig
from rlhf_plugin_episodes.program import Conversation
from tests.waiting import wait_for

from .conftest import Stage


class First(EpisodeAgentConfig):
    """Calls before it has asked the policy anything."""

    name: str = "first"

    def converse(self, talk: Conversation) -> str:
        talk.call([ToolCall("do", {"what": "die", "argument": ""}, "made1")])
        return "answer"


class Planner(EpisodeAgentConfig):
    """A plan, a call in the same conversation, and an answer in a context of its own."""

    name: str = "planner"
    tool: str = "echo"
    argument: str = "a"
    rules: int = 1

    def converse(self, talk: Conversation) -> str:
        messages: list[Any] = [{"role": "system", "content": "Plan. " * self.rules}, *talk.prompt.messages]
        messages.append(talk.ask(messages).message)
        arguments = {"what": self.tool, "argument": self.argument}
        result = talk.call([ToolCall("do", arguments, "made1")])[0]
        messages.append({"role": "user", "content": f"It says: {result.content}"})
        fact = talk.ask(messages)
        talk.ask([{"role": "user", "content": f"Answer from: {fact.message['content']}"}])
        return "answer" if fact.message["content"] else "gave_up"

    def worthless(self, ended: str) -> bool:
        return ended == "gave_up"


def test_tokens_are_those_that_were_sampled_in_the_contexts_that_the_program_made(stage: Stage, tokenizer: Any) -> None:
    stage.kind = Planner
    script = {"p": ["I search.", "It is a.", "a"], "q": ["Well.", "", "b"]}
    played, gave_up = stage.play(script)
    check_episode(played, 2000, "agent")
    assert stage.engine is not None
    asked = [r for r in stage.engine.requests if r.prompt_id == "p"]
    sample = TrainingSample.from_rollout(played)
    first, last = sample.pieces  # the second turn goes on in the first one's context
    assert first[0] == asked[0].prompt_ids != played.prompt_ids
    assert (*first[0], *first[1])[: len(asked[1].prompt_ids)] == asked[1].prompt_ids
    assert last[0] == asked[2].prompt_ids
    assert tokenizer.decode(last[0]).count("Answer from: It is a.") == 1
    assert played.mask_T is not None
    written = np.asarray(played.completion_ids)[played.mask_T].tolist()
    assert written == [
        i for text in script["p"] for i in (*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id)
    ]
    assert [t.role for t in played.turns] == ["system", "assistant", "user", "assistant", "user", "assistant"]
    assert stage.engine.batches == [2, 2, 2]  # both episodes together, though each is a program of its own
    assert (played.score, played.info["ended"]) == (Score(1.0), "answer")
    assert (gave_up.score, gave_up.info["ended"]) == (Score(0.0, detail="ended: gave_up"), "gave_up")


def test_what_the_environment_pays_stands_with_the_turn_that_shows_it(stage: Stage) -> None:
    stage.kind = Planner
    (played,) = stage.play({"p": ["I search.", "Paid.", "a"]}, tool="reward", argument="0.5")
    assert [(t.role, t.score) for t in played.turns if t.score is not None] == [("user", 0.5)]


def test_who_has_no_room_or_no_environment_ends(stage: Stage) -> None:
    stage.kind = Planner
    (short,) = stage.play({"p": ["I search.", "x", "y"]}, max_tokens=12)
    assert short.info["ended"] == "length"  # the budget, not what the policy can read at once
    (broken,) = stage.play({"p": ["I search.", "x", "y"]}, tool="segfault")
    assert broken.score is not None
    assert (broken.score.ok, broken.info["turns"]) == (False, 1)
    with pytest.raises(ConfigError, match="no room for its first turn of prompt p"):
        stage.play({"p": ["I search."], "q": ["I search."]}, rules=4000)


def test_an_error_of_a_program_ends_the_run_and_leaves_no_thread(stage: Stage) -> None:
    class Faulty(Planner):
        def converse(self, talk: Conversation) -> str:
            talk.ask(talk.prompt.messages)
            if talk.prompt.id == "p":
                raise ValueError("a bug of the program")
            return super().converse(talk)

    stage.kind = Faulty
    with pytest.raises(ValueError, match="a bug of the program"):
        stage.play({"p": ["a", "b"], "q": ["a", "b", "c", "d"]})
    assert not [t for t in threading.enumerate() if "_play" in t.name]


def test_the_last_word_of_the_environment_is_the_users_and_keeps_its_score(stage: Stage) -> None:
    class Talks(EpisodeAgentConfig):
        name: str = "talks"

        def converse(self, talk: Conversation) -> str:
            assert talk.respond(str(talk.ask(talk.prompt.messages).message["content"])) is None
            return "answer"

    stage.kind = Talks
    (played,) = stage.play({"p": ["Last."]}, "talker")
    assert [(t.role, t.text, t.score) for t in played.turns[1:]] == [("user", "Thanks.", 0.25)]


def test_an_environment_that_fails_before_the_first_question_is_a_missing_score(stage: Stage) -> None:
    class Mixed(Planner):
        def converse(self, talk: Conversation) -> str:
            return First.converse(self, talk) if talk.prompt.id == "p" else super().converse(talk)  # pyright: ignore

    stage.kind = Mixed
    broken, played = stage.play({"p": ["x"], "q": ["I search.", "It is a.", "a"]}, tool="echo")
    assert broken.score is not None
    assert (broken.score.ok, broken.score.status, played.score) == (False, ScoreStatus.ERROR, Score(1.0))
    assert [t.text for t in broken.turns] == ["x"]
    check_episode(broken, 2000, "agent")


def test_a_program_that_asks_nothing_is_named(stage: Stage) -> None:
    class Silent(Planner):
        def converse(self, talk: Conversation) -> str:
            return "answer"

    stage.kind = Silent
    with pytest.raises(PluginError, match="'planner' ended an episode without asking the policy anything"):
        stage.play({"p": ["x"]})


@pytest.mark.slow
def test_a_program_that_does_nothing_for_too_long_is_a_missing_score(stage: Stage) -> None:
    """Whether before its first question or after it; it gets no further, and the others play on."""
    release, late = threading.Event(), list[str]()

    class Hanging(Planner):
        program_timeout_s: float | None = 1.0

        def converse(self, talk: Conversation) -> str:
            if talk.prompt.id == "p":
                return super().converse(talk)
            if talk.prompt.id == "r":
                talk.ask(talk.prompt.messages)
            release.wait(250)
            try:
                talk.call([ToolCall("do", {"what": "echo", "argument": "late"}, "made1")])
            finally:
                late.append(talk.episode.ended)
            return "answer"

    stage.kind = Hanging
    played, unasked, asked = stage.play({"p": ["I search.", "It is a.", "a"], "q": ["x"], "r": ["y"]}, tool="echo")
    assert played.score == Score(1.0)
    for rollout in (unasked, asked):
        assert rollout.score is not None
        assert (rollout.score.status, rollout.info["ended"]) == (ScoreStatus.TIMEOUT, "timeout")
        assert "'planner' did nothing for 1 s" in rollout.score.detail
    assert not late, "nobody waits for it at the end either"
    release.set()
    wait_for(lambda: len(late) == 2, "the end of both programs")
    assert late == ["timeout", "timeout"]
