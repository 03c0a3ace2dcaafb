"""`rlhf eval episodes`: success and best-of-N of a model that plays in an environment."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rlhf_core.cli import context_of, open_registry
from rlhf_core.data import DatasetError, Prompt
from rlhf_core.models import ModelConfig, load_policy
from rlhf_core.rewards import Score, ScoreStatus
from rlhf_core.rollouts import FinishReason, Rollout, Turn
from rlhf_eval import episodes
from rlhf_eval.episodes import judged
from rlhf_eval.selectors import _question, _sample
from rlhf_plugin_reward.classifier_files import save_classifier
from rlhf_plugin_reward.net import fresh_net

CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": {}}}
EASY = ("lookup", "--limit", 3, "--n", 2, "--set", "dataset.calls=[2]", "--set", "dataset.prompts=20")


@pytest.mark.slow
def test_episodes_are_counted_chosen_from_and_go_on_where_they_were_killed(
    rlhf: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(episodes, "CHUNK", 2)
    whole = rlhf("eval", "episodes", *EASY, "--out", "whole", "--best-by", "reward:{name: random}", "--json")
    assert whole.code == 0, whole.err
    report = json.loads(whole.out)
    rows = [json.loads(line) for line in Path("whole/rows.jsonl").read_text().splitlines()]
    assert (report["prompts"], report["samples"], len(rows)) == (3, 2, 6)
    values = np.array([row["value"] for row in rows]).reshape(3, 2)
    assert report["pass_at"]["1"]["value"] == pytest.approx(values.mean())
    assert report["pass_at"]["2"]["value"] == pytest.approx(values.max(1).mean())
    assert set(report["best_at"]) == {"logprob", "random"}
    assert {turn["role"] for row in rows for turn in row["turns"]} == {"assistant", "tool"}
    assert all(row["tokens"] < row["turns"][-1]["span"][1] for row in rows), "results are no tokens of the policy"
    shutil.copytree("whole", "cut")
    lines = Path("whole/rows.jsonl").read_bytes().splitlines(keepends=True)
    Path("cut/rows.jsonl").write_bytes(b"".join(lines[:3]))
    Path("cut/times.jsonl").write_text(Path("whole/times.jsonl").read_text().splitlines()[0] + "\n")
    assert rlhf("eval", "episodes", *EASY, "--out", "cut").code == 0
    timeless = [
        [{**json.loads(line), "turns": []} for line in Path(name, "rows.jsonl").read_text().splitlines()]
        for name in ("whole", "cut")
    ]
    assert timeless[0] == timeless[1]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("lookup",), "'lookup' is an environment, not a suite of prompts"),
        (("episodes", "nowhere"), "unknown environment 'nowhere'"),
        (("episodes", "tools"), "environment 'tools' has no score of its own"),
        (("episodes", "lookup", "--model", "pocket", "--limit", 1), "the chat template ignores tools"),
        (("episodes", "lookup", "--set", "trainer.steps=1"), "--set trainer: no such section here"),
    ],
)
def test_what_cannot_work_is_exit_code_2(words: tuple[Any, ...], says: str, rlhf: Callable[..., Any]) -> None:
    ran = rlhf("eval", *words)
    assert (ran.code, says in ran.err) == (2, True), ran.err


def test_an_agent_of_another_name_gets_none_of_the_settings_that_go_with_the_environment() -> None:
    ctx = context_of(open_registry())
    own = episodes.job_of(ctx, "lookup", ["agent.max_turns=2"]).agent
    assert (own.name, own.max_turns, own.max_turn_tokens) == ("multi_turn", 2, 40)
    assert episodes.job_of(ctx, "lookup", ["agent.name=single_turn"]).agent.name == "single_turn"
    assert episodes.job_of(ctx, "lookup", ["agent=single_turn"]).agent.name == "single_turn"


def test_prompts_with_tools_that_nothing_answers_are_refused(tmp_path: Path) -> None:
    file, fly = tmp_path / "p.jsonl", {"type": "function", "function": {"name": "fly", "parameters": {}}}
    file.write_text("".join(json.dumps({"prompt": f"{n}?", **({"tools": [fly]} if n else {})}) + "\n" for n in (0, 1)))
    ctx = context_of(open_registry())
    job = episodes.job_of(ctx, "tools", reward="verifier", dataset=str(file))
    with pytest.raises(DatasetError, match="offers the tool 'fly', which environment 'tools' does not have") as refused:
        job.prompts(ctx)
    assert "line 2" in str(refused.value.where)
    (first,) = replace(job, limit=1).prompts(ctx)
    assert [tool["function"]["name"] for tool in first.tools] == ["calculator"]


def test_an_episode_that_its_environment_broke_has_no_score_and_selectors_see_the_whole_of_others() -> None:
    turns = (
        Turn((0, 1), "assistant", {"role": "assistant", "content": "", "tool_calls": [CALL]}),
        Turn((1, 2), "tool", {"role": "tool", "content": "42"}, 0.5, seconds=1.0),
        Turn((2, 3), "assistant", {"role": "assistant", "content": "It is 42."}),
    )

    def rollout(score: Score | None) -> Rollout:
        logprobs, mask = np.float32([-1, 0, -1]), np.array([True, False, True])
        last = (mask, {"ended": "answer"}, (), turns, score)
        return Rollout("p", 0, (1,), (5, 6, 7), logprobs, 0, FinishReason.EOS, "It is 42.", 1, *last)

    tools: Any = ({"type": "function", "function": {"name": "f", "parameters": {}}},)
    prompt = Prompt("p", ({"role": "user", "content": "?"},), answer="42", tools=tools)
    broken = Score.failed(ScoreStatus.TIMEOUT, "late")
    reward = SimpleNamespace(score=lambda samples: [Score(1.0)] * len(samples))
    good, bad = json.loads(json.dumps(judged([prompt] * 2, [rollout(None), rollout(broken)], reward)))
    assert (good["value"], good["tokens"], good["mean_logprob"]) == (1.0, 2, -1.0)
    assert (bad["value"], bad["status"], bad["category"]) == (None, "timeout", "not judged")
    assert _sample(good) == rollout(None).sample(prompt)
    assert "42" in _question(good).split("It is 42.")[0], "a judge reads what the answer rests on"
    cut = {**good, "turns": good["turns"][:1], "completion": ""}
    assert '"name": "f"' in _question(cut), "of a cut episode the call is what it judges"


def test_a_reward_model_that_cannot_read_calls_is_refused_before_anything_is_played(
    rlhf: Callable[..., Any], tmp_path: Path
) -> None:
    policy = load_policy(ModelConfig(path="pocket"))
    save_classifier(fresh_net(policy, 1, 0, "none", copy_trunk=False), policy.tokenizer, tmp_path / "rm")
    ran = rlhf("eval", "episodes", *EASY, "--out", "x", "--best-by", tmp_path / "rm")
    assert ran.code == 2
    assert f"reward model '{tmp_path / 'rm'}' cannot read episodes of environment 'lookup'" in ran.err
    assert Path("x/rows.jsonl").read_text() == ""
