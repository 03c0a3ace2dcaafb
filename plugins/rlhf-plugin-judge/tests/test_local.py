"""The local judge on the pocket model."""

from __future__ import annotations

import pytest

from rlhf_core.models import ModelConfig
from rlhf_core.rewards import JudgeRequest, ScoreStatus
from rlhf_plugin_judge.config import LocalConfig
from rlhf_testing import check_judge, make_context

POCKET = LocalConfig(model=ModelConfig(path="pocket"))


@pytest.mark.slow
def test_conforms():
    check_judge(POCKET)


def test_an_answer_that_ends_at_once_is_missing_and_no_empty_text():
    turn = ({"role": "user", "content": "What is 2 + 3?"},)
    wild = [JudgeRequest(str(i), turn, max_tokens=1, temperature=20.0, seed=i) for i in range(150)]
    replies = POCKET.build(make_context()).ask(wild)
    ended = [r for r in replies if not r.text]
    assert ended
    assert {(r.text, r.status, r.output_tokens) for r in ended} == {(None, ScoreStatus.MISSING, 1)}


def test_answers_what_fits():
    judge = POCKET.build(make_context())
    turn = ({"role": "user", "content": "What is 2 + 3?"},)
    requests = [
        JudgeRequest("a", turn, max_tokens=12),
        JudgeRequest("b", turn, "Be brief.", max_tokens=3),
        JudgeRequest("c", turn, max_tokens=10**6),
        JudgeRequest("d", turn, max_tokens=12, temperature=1.0, seed=1),
        JudgeRequest("e", turn, max_tokens=12, temperature=1.0, seed=2),
    ]
    replies = judge.ask(requests)
    assert replies[0].text == judge.ask(requests[:1])[0].text
    assert 0 < replies[1].output_tokens <= 3
    assert replies[1].input_tokens > replies[0].input_tokens
    assert replies[2].status is ScoreStatus.ERROR
    assert "context" in replies[2].detail
    assert [r.text for r in judge.ask(requests[3:])] == [r.text for r in replies[3:]]
