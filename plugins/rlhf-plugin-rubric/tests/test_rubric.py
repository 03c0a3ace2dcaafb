"""Rubrics as data, and their grades by a judge."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.config import ConfigError
from rlhf_core.data import Prompt
from rlhf_core.rewards import Sample, ScoreStatus
from rlhf_core.rollouts import Turn
from rlhf_plugin_judge.config import AnthropicConfig
from rlhf_plugin_judge.stand_in import Service, StandIn
from rlhf_plugin_rubric.config import RubricRewardConfig
from rlhf_plugin_rubric.rubric import BadGrades, Rubric, load_rubric
from rlhf_testing import check_reward, make_context

TWO = Rubric.model_validate(
    {
        "criteria": [
            {"name": "right", "question": "Is it right?", "scale": [0, 1], "weight": 3},
            {"name": "short", "question": "Is it short?"},
        ]
    }
)
Serve = Callable[[Callable[[Mapping[str, Any]], str]], tuple[RubricRewardConfig, Service]]


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """``serve(answer)``: the reward, with a judge that asks a service on this machine."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "a-key")
    monkeypatch.setenv("RLHF_CACHE", str(tmp_path / "cache"))
    running: list[StandIn] = []

    def start(answer: Callable[[Mapping[str, Any]], str]) -> tuple[RubricRewardConfig, Service]:
        running.append(StandIn(Service(answer)).__enter__())
        judge = AnthropicConfig(base_url=running[-1].url)
        return RubricRewardConfig(rubric=TWO, judge=judge), running[-1].service

    yield start
    for server in running:
        server.__exit__()


def samples(*texts: str) -> list[Sample]:
    return [Sample(Prompt(f"p/{i}", ({"role": "user", "content": "2 + 2?"},)), t) for i, t in enumerate(texts)]


def test_one_part_per_criterion_and_their_weighted_mean(serve: Serve) -> None:
    config, service = serve(lambda body: 'Fine. {"why": "", "grades": {"right": 1, "short": 2}}')
    score = config.build(make_context()).score(samples("4"))[0]
    assert score.parts == {"right": 1.0, "short": 0.25}
    assert score.value == pytest.approx(0.75 * 1 + 0.25 * 0.25)
    system = service.bodies[0]["system"][0]["text"]
    assert "- short, from 1 (worst) to 5 (best): Is it short?" in system
    assert '"grades": {"right": N, "short": N}' in system


def test_the_judge_reads_what_an_episode_called_and_was_told(serve: Serve) -> None:
    config, service = serve(lambda body: '{"why": "", "grades": {"right": 1, "short": 2}}')
    call = {"id": "c0", "type": "function", "function": {"name": "add", "arguments": {"a": 2}}}
    said: list[Any] = [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "four it is </response>", "tool_call_id": "c0"},
        {"role": "assistant", "content": "It is 4."},
    ]
    turns = tuple(Turn((n, n + 1), m["role"], m) for n, m in enumerate(said))
    prompt = Prompt("p", ({"role": "user", "content": "2 + 2?"},))
    whole, cut = Sample(prompt, "It is 4.", trajectory=turns), Sample(prompt, "", trajectory=turns[:1])
    assert [score.value for score in config.build(make_context()).score([whole, cut])] == [0.8125] * 2
    asked, unanswered = sorted((body["messages"][0]["content"] for body in service.bodies), key=len, reverse=True)
    before, _, response = asked.partition("four it is")
    assert "2 + 2?" in before
    assert all(part in before for part in ("add", '"a": 2'))
    assert "It is 4." in response
    assert '"a": 2' in unanswered, "an episode that was cut is graded by its call"


@pytest.mark.parametrize(
    ("grades", "why"),
    [
        ({"right": 1}, "no grade for short"),
        ({"right": 1, "short": 3, "kind": 1}, "no criterion kind"),
        ({"right": 2, "short": 3}, "outside its scale from 0 to 1"),
        ({"right": True, "short": 3}, "must be a number"),
        ([1, 3], "must be an object"),
        (None, "must be an object"),
    ],
)
def test_grades_that_do_not_fit_are_asked_for_again_and_then_a_status(serve: Serve, grades: Any, why: str) -> None:
    config, service = serve(lambda body: json.dumps({"grades": grades}))
    score = config.build(make_context()).score(samples("4"))[0]
    assert (score.value, score.status) == (None, ScoreStatus.ERROR)
    assert why in score.detail
    assert why in service.bodies[1]["messages"][2]["content"]
    with pytest.raises(BadGrades, match=why):
        TWO.read(grades)


@pytest.mark.slow
def test_conforms(serve: Serve) -> None:
    check_reward(serve(lambda body: '{"grades": {"right": 0, "short": 5}}')[0])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("criteria: []", "no criteria"),
        ("- {name: a, question: x}\n- {name: a, question: y}", "two criteria of the rubric have the name 'a'"),
        ("- {name: a, question: x y}\n- {name: b, question: ' x  y'}", "have the question 'x y'"),
        ("- {name: a, question: x, scale: [5, 5]}", "the scale from 5 to 5 is empty"),
        ("- {name: a, question: x, weight: 0}", "criteria.0.weight"),
        ("- {name: a}", "criteria.0.question"),
        ("- {name: a, question: x, wieght: 2}", "criteria.0.wieght"),
        ("a: [", "not YAML"),
        ("", "its file holds nothing"),
        ("my rubric", "its file holds a str"),
    ],
)
def test_a_rubric_that_cannot_work_is_refused_with_its_file(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_rubric(str(file))
    assert why in str(caught.value)
    assert "mine.yaml" in str(caught.value)


def test_rubrics_by_name_file_and_value(tmp_path: Path) -> None:
    assert load_rubric("assistant").names == ("helpfulness", "honesty", "harmlessness", "conciseness", "specificity")
    assert RubricRewardConfig().rubric == load_rubric("assistant")
    file = tmp_path / "mine.yaml"
    file.write_text("- {name: clear, question: 'Is it clear?', scale: [0, 10]}\n")
    from_file = RubricRewardConfig.model_validate({"rubric": str(file)})
    assert from_file.model_dump(mode="json")["rubric"]["criteria"][0]["scale"] == [0, 10]
    assert from_file.rubric.read({"clear": 7}) == {"clear": 0.7}
    with pytest.raises(ConfigError, match="there is no rubric 'asistant'"):
        load_rubric("asistant")
