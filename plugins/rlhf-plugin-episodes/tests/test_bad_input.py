"""Whatever a policy writes, it reads what was wrong, and the run goes on; what the user got wrong is exit code 2."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import rlhf_core
from rlhf_core.cli.main import main
from rlhf_core.config import ConfigError, PluginError, UserError
from rlhf_core.models import ModelError
from rlhf_core.types.messages import ToolResult
from rlhf_plugin_episodes.serve import answer

from .conftest import Stage, call
from .test_multi_turn import results

FORMAT = """
from rlhf_plugin_episodes.tool_formats import ParsedToolCalls, RawToolCall

def do(what, **more): return RawToolCall(what, "do", {"what": what, **more})

KINDS = [
    [RawToolCall("x", "fly", {})],
    [RawToolCall("x", "do", '{"what": ')],
    [RawToolCall("x", "do", {"what": 3})],
    [RawToolCall("x", "do", {"what": "echo", "more": 1})],
    [RawToolCall("x", "do", [1, 2])],
    [RawToolCall("x", error="the call is not JSON")],
    [do("huge")],
    [do("binary")],
    [do("refuse")],
    [do("finish"), do("echo", argument="after the end")],
    [do("echo", argument=str(n)) for n in range(5)],
]

class Mess:
    seen = 0
    def take(self, text):
        Mess.seen += 1
        return ParsedToolCalls(text, KINDS[Mess.seen % len(KINDS)])
"""


@pytest.fixture
def mess(naughty: Path) -> Path:
    """A tool format that reads one fault after the other out of whatever the policy writes."""
    (naughty / "mess_format.py").write_text(FORMAT)
    info = naughty / "mess-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mess\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[rlhf.tool_format]\nmess = mess_format:Mess\n")
    rows = [{"id": f"q{n}", "prompt": f"What is {n}?"} for n in range(24)]
    (naughty / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return naughty


SETTINGS: dict[str, Any] = {
    "threads": 1,
    "trainer.steps": 1,
    "trainer.rollout_batch_size": 8,
    "trainer.group_size": 4,
    "trainer.sampling.max_tokens": 1200,
    "trainer.eval_samples": 0,
    "trainer.trace_prompts": 2,
    "agent.max_turn_tokens": 5,
    "agent.max_turns": 5,
    "agent.max_calls": 3,
    "agent.max_result_characters": 60,
}


def words(model: Path, folder: Path, **more: Any) -> list[str]:
    settings = {**SETTINGS, "model.tool_format": "mess", **more}
    sets = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    names = ["train", "--algo", "grpo", "--env", "naughty", "--model", str(model)]
    return [*names, "--dataset", str(folder / "prompts.jsonl"), *sets, "--run-dir", str(folder / "run")]


def run(given: list[str]) -> int:
    with pytest.raises(SystemExit) as done:
        main(given)
    return int(done.value.code or 0)


@pytest.mark.slow
def test_a_run_whose_policy_gets_everything_wrong_goes_on(mess: Path, small_model: Path) -> None:
    assert run(words(small_model, mess)) == 0
    rows = [json.loads(line) for line in (mess / "run" / "trace.jsonl").read_text().splitlines()]
    turns = [t for r in rows if r["event"] == "prompt" for c in r["completions"] for t in c["turns"]]
    read = [t for t in turns if t["role"] == "tool"]
    said = Counter(part for t in read for part in SAID if part in t["message"]["content"])
    assert set(said) == set(SAID), said
    assert all(len(t["message"]["content"]) < 700 for t in read)
    assert {t.get("status", "ok") for t in read} == {"ok", "error", "truncated"}


SAID = (
    "there is no tool 'fly'",
    "are not valid JSON",
    "break its schema at $.what: 3 is not of type 'string'",
    "'more' was unexpected",
    "must be an object, not list",
    "the call is not JSON",
    "[cut: 60 of 5242880 characters]",
    "25600 bytes that are not text",
    "not today",
    "a turn may hold 3 calls",
)


def test_an_environment_that_returns_the_wrong_type_is_exit_code_2(
    mess: Path, small_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words(small_model, mess, **{"environment.score_does": "pid"})) == 2
    shown = capsys.readouterr().err
    assert "environment 'naughty' (naughty-environment 1.0)" in shown
    assert "() returned str" in shown
    assert not (mess / "run" / "final").exists()


@pytest.mark.parametrize(
    ("settings", "error", "says"),
    [
        ({"environment.name": "nowhere"}, PluginError, "nowhere"),
        ({"environment.name": "twice"}, ConfigError, "two tools called 'do'"),
        ({"environment.name": "forgetful"}, PluginError, "could not be resumed"),
        ({"environment.name": "naughty", "agent.max_turns": 0}, ConfigError, "max_turns"),
        (
            {"environment.name": "naughty", "model.path": "pocket", "trainer.sampling.max_tokens": 9},
            ModelError,
            "ignores tools",
        ),
        ({"environment.name": "naughty", "model.tool_format": "hermez"}, ConfigError, "no tool format 'hermez'"),
        ({"environment.name": "naughty", "environment.reset_does": "pid"}, PluginError, "expected None"),
    ],
)
def test_from_python_it_is_the_same_error(
    settings: dict[str, Any], error: type[UserError], says: str, mess: Path, small_model: Path
) -> None:
    given = {**SETTINGS, "model.path": str(small_model), **settings}
    with pytest.raises(error, match=says):
        rlhf_core.train(
            "grpo", dataset=str(mess / "prompts.jsonl"), settings=given, run_dir=mess / "run", progress=False
        )


def test_a_call_beside_an_answer_is_made_and_the_last_turn_is_the_answer(stage: Stage) -> None:
    over = f"{call('finish')}\n{call('echo', 'late')}"
    one, two = stage.play({"p": [f"It is 3.{call('echo', 'a')}", "It is 4."], "q": [f"It is 5.{over}", "never"]})
    assert [turn.text for turn in one.turns if turn.role == "assistant"] == ["It is 3.", "It is 4."]
    assert (one.text, one.info["ended"]) == ("It is 4.", "answer")
    assert (two.text, two.info["ended"], len(results(two))) == ("It is 5.", "done", 2)


class Odd:
    """Answers calls with what a test says."""

    def __init__(self, returned: Any) -> None:
        self.returned = returned

    def step(self, calls: Any) -> Any:
        return self.returned


WRONG: list[Any] = ["text", b"x", None, 3, {}, [], ["a", "b"], [None], [{"content": "x"}]]


@pytest.mark.parametrize("returned", [*WRONG, [ToolResult(3)], [ToolResult("x", score=float("nan"))]])  # type: ignore[arg-type]
def test_a_step_of_the_wrong_form_is_the_environments_fault(returned: Any) -> None:
    request = {"op": "step", "calls": [{"name": "do", "arguments": {}, "id": "call00000"}]}
    assert "contract" in answer(Odd(returned), request, 100)
