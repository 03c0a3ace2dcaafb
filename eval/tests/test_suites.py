"""The real suites on their real rows: what is right counts as right, through the same workers and sandbox."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlhf_core.cli import context_of, load_sampler, open_registry
from rlhf_core.data import Prompt
from rlhf_core.models import ModelConfig
from rlhf_core.rollouts import FinishReason, Rollout, RolloutRequest

from .conftest import gsm8k_rows

LIMITS = {"gsm8k": 1024, "math": 2048, "math_full": 2048, "aime": 2048, "ifeval": 4096, "ifbench": 4096, "apps": 2048}


class Scribe:
    """An engine that writes what it is told for each prompt."""

    def __init__(self, say: Callable[[str], str], finish: FinishReason = FinishReason.EOS) -> None:
        self.say, self.finish = say, finish

    def generate(self, requests: Sequence[RolloutRequest], sampling: Any, version: int) -> list[Rollout]:
        return [
            Rollout(
                r.prompt_id,
                r.group_index,
                r.prompt_ids,
                (1,),
                np.zeros(1, np.float32),
                version,
                self.finish,
                self.say(r.prompt_id),
                r.seed,
            )
            for r in requests
        ]


def rows(
    name: str, path: Path, say: Callable[[Prompt], str], finish: FinishReason = FinishReason.EOS, **options: Any
) -> list[dict[str, Any]]:
    registry = open_registry()
    policy, _ = load_sampler(registry, ModelConfig(path="pocket"))
    roomy = type(policy)(policy.model, policy.tokenizer, policy.source, 1 << 20)
    suite = registry.config("benchmark", name, {"path": str(path), "workers": 1, **options})
    built = suite.build(context_of(registry).with_(policy=roomy))
    prompts = {i.prompt.id: i.prompt for i in built.items}
    try:
        return built.rows(range(len(built.items)), Scribe(lambda i: say(prompts[i]), finish))
    finally:
        built.close()


@pytest.mark.slow
def test_mbpps_reference_solutions_pass_in_the_sandbox_and_a_stub_does_not(test_data: Path) -> None:
    path = test_data / "mbpp" / "sanitized-mbpp.json"
    right = rows("mbpp", path, lambda p: f"Here it is.\n```python\n{p.meta['code']}\n```", limit=6)
    assert [r["category"] for r in right] == ["format and answer"] * 6
    assert [r["value"] for r in rows("mbpp", path, lambda p: "```python\npass\n```", limit=3)] == [0.0] * 3


@pytest.mark.slow
def test_gsm8k_tells_form_from_answer_in_every_style(test_data: Path, write: Callable[..., Path]) -> None:
    path = write("test.jsonl", gsm8k_rows(test_data, 4))
    plain = rows("gsm8k", path, lambda p: f"It is {p.answer}", limit=4)
    assert {(r["category"], r["strict"], r["lenient"]) for r in plain} == {("answer only", 0.0, 1.0)}
    stop = FinishReason.STOP
    cot = rows("gsm8k", path, lambda p: f"So. The answer is {p.answer}.\n\nQ: 5?", stop, limit=4, style="cot")
    assert {(r["category"], r["stop"], r["strict"]) for r in cot} == {("format and answer", "Q:", 1.0)}
    assert not any("Q:" in r["completion"] for r in cot)
    tags = rows("gsm8k", path, lambda p: f"so </think> <answer> {p.answer} </answer>", stop, limit=4, style="r1_zero")
    assert {(r["category"], r["stop"]) for r in tags} == {("format and answer", "</answer>")}
    wrong = rows("gsm8k", path, lambda p: "so </think> <answer> -77 </answer>", stop, limit=4, style="r1_zero")
    assert {r["category"] for r in wrong} == {"format only"}


@pytest.mark.slow
def test_apps_programs_are_run_by_the_form_of_their_row(write: Callable[..., Path]) -> None:
    add = {"inputs": ["1 2\n"], "outputs": ["3\n"]}
    call = {"fn_name": "add", "inputs": [[1, 2]], "outputs": [3]}
    published = [
        {
            "problem_id": 7,
            "question": "Add.",
            "input_output": json.dumps(add),
            "starter_code": "",
            "difficulty": "interview",
        },
        {"problem_id": 8, "question": "Add.", "input_output": json.dumps(call), "starter_code": "def add(a, b):"},
    ]
    path = write("apps.jsonl", published)
    programs = {"Standard": "print(sum(map(int, input().split())))", "Call": "def add(a, b):\n    return a + b"}

    def say(prompt: Prompt) -> str:
        return f"```python\n{programs['Call' if 'Call-Based' in prompt.text else 'Standard']}\n```"

    assert [(r["id"].rpartition("/")[2], r["value"]) for r in rows("apps", path, say)] == [("7", 1.0), ("8", 1.0)]
    assert [r["value"] for r in rows("apps", path, lambda p: "```python\nprint(4)\n```")] == [0.0, 0.0]


def test_token_limits_are_those_that_do_not_cut_answers_off() -> None:
    registry = open_registry()
    limits = {n: registry.config("benchmark", n).sampling.max_tokens for n in LIMITS}  # type: ignore[attr-defined]
    assert limits == LIMITS


@pytest.mark.slow
def test_ifbench_is_judged_loosely(test_data: Path) -> None:
    graded_rows = rows("ifbench", test_data / "ifbench" / "IFBench_test.jsonl.gz", lambda p: "So it is.", limit=20)
    assert all(r["value"] == r["lenient"] for r in graded_rows)


@pytest.mark.slow
def test_ifeval_is_judged_in_both_modes(test_data: Path) -> None:
    graded_rows = rows("ifeval", test_data / "ifeval" / "input_data.jsonl", lambda p: "no commas here", limit=20)
    assert {r["category"] for r in graded_rows} <= {"right", "wrong"}
    assert all(r["strict"] <= r["lenient"] for r in graded_rows)
    assert "instructions" in graded_rows[0]["parts"]
