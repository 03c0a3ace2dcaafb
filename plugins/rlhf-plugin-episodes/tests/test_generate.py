"""`rlhf generate --env`: episodes outside a run, shown turn by turn."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rlhf_core.cli.main import main
from rlhf_core.data.completions import read_completions
from rlhf_core.types.errors import ConfigError, DatasetError
from rlhf_core.types.rollouts import Prompt, Score
from rlhf_plugin_episodes.functions import load_functions
from rlhf_plugin_native.generate import read_prompts
from rlhf_plugin_native.stage import Stage

FORMAT = """
from rlhf_plugin_episodes.tool_formats import ParsedToolCalls, RawToolCall

class Always:
    def take(self, text):
        return ParsedToolCalls(text[:1], [RawToolCall(text, "do", {"what": "reward", "argument": "0.5"})])
"""


@pytest.fixture
def always(naughty: Path) -> Path:
    """Whatever the policy writes is a call that is paid 0.5."""
    (naughty / "always_format.py").write_text(FORMAT)
    info = naughty / "always-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: always\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[rlhf.tool_format]\nalways = always_format:Always\n")
    return naughty


def words(model: Path, *more: str) -> list[str]:
    short = ["--max-tokens", "400", "--set", "agent.max_turn_tokens=6", "--set", "agent.max_turns=3"]
    return ["generate", "--env", "naughty", "--model", str(model), "--prompt", "Hello?", *short, *more]


def run(given: list[str]) -> int:
    with pytest.raises(SystemExit) as done:
        main(given)
    return int(done.value.code or 0)


def test_a_reward_sees_the_episodes_that_were_written_to_a_file(
    always: Path, small_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = always / "episodes.jsonl"
    assert run(words(small_model, "--tool-format", "always", "--n", "2", "--out", str(file))) == 0
    rows, samples, _ = read_completions(str(file))
    for row, sample in zip(rows, samples, strict=True):
        assert [turn.role for turn in sample.trajectory] == ["assistant", "tool", "assistant", "tool", "assistant"]
        assert [turn.score for turn in sample.trajectory if turn.role == "tool"] == [0.5, 0.5]
        assert (sample.prompt.tools[0]["function"]["name"], sample.environment) == ("do", Score(0.0))
        assert sample.completion == row["completion"] == sample.trajectory[-1].text
        assert sample.call is not None
    assert run(["reward", "score", "--reward", "environment", "--input", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["mean"] == 1.0  # what the turns were paid
    broken = {**rows[0], "turns": [{"span": [0, 1], "role": "assistant"}]}
    file.write_text(json.dumps(broken) + "\n")
    assert run(["reward", "score", "--reward", "environment", "--input", str(file)]) == 2
    assert "column 'turns' does not hold the turns of an episode" in capsys.readouterr().err


def test_the_environment_gets_the_rows_answer_and_its_further_columns(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"id": "g2", "prompt": "Guess.", "answer": 2, "level": "easy"}) + "\n")
    (row,) = read_prompts([], [str(file)])
    assert (row.prompt.answer, dict(row.prompt.meta)) == ("2", {"level": "easy"})


def test_the_environments_score_is_found_in_the_rows_of_an_evaluation(tmp_path: Path) -> None:
    turn = {"span": [0, 1], "role": "assistant", "message": {"role": "assistant", "content": "4"}, "score": 0.5}
    row = {"prompt": [{"role": "user", "content": "?"}], "completion": "4", "turns": [turn], "status": "ok"}
    file = tmp_path / "rows.jsonl"

    def outcome(**columns: object) -> float | None:
        file.write_text(json.dumps({**row, **columns}) + "\n")
        score = read_completions(str(file)).samples[0].environment
        return None if score is None else score.value

    assert outcome(value=1, parts={}) == 1.0
    assert outcome(value=1.5, parts={"outcome": 1.0, "turns": 0.5}) == 1.0, "turns are added by the reward"
    assert outcome(value=0.0, score=0.25) == 0.25
    assert outcome() is None
    for wrong in (float("nan"), "much", True):
        with pytest.raises(
            DatasetError, match=r"column 'score' holds (no finite number|a number that is not)"
        ) as refused:
            outcome(score=wrong)
        assert ":1" in str(refused.value) or "line 1" in str(refused.value.where)


def test_a_prompt_with_tools_that_nothing_answers_is_refused() -> None:
    stage = Stage.chosen("tools")
    fly = {"type": "function", "function": {"name": "fly", "parameters": {}}}
    asked = Prompt("p", ({"role": "user", "content": "?"},))
    assert stage.offer([asked])[0].tools[0]["function"]["name"] == "calculator"
    with pytest.raises(DatasetError, match="offers the tool 'fly'"):
        stage.offer([asked, replace(asked, tools=(fly,))])


def test_an_episode_is_shown_turn_by_turn(always: Path, small_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words(small_model, "--tool-format", "always", "--n", "2", "--json")) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert [tool["function"]["name"] for tool in row["tools"]] == ["do"]
    for one in row["completions"]:
        assert [turn["role"] for turn in one["turns"]] == ["assistant", "tool", "assistant", "tool", "assistant"]
        assert one["turns"][1]["score"] == 0.5
        assert (one["ended"], one["score"], one["status"]) == ("max_turns", 0.0, "ok")
    assert row["completions"][0]["turns"] != row["completions"][1]["turns"]
    assert run(words(small_model, "--tool-format", "always")) == 0
    shown = capsys.readouterr().out
    assert '<tool_call>{"name": "do", "arguments": {"what": "reward", "argument": "0.5"}}</tool_call>' in shown
    assert "tool (" in shown
    assert "score 0.5" in shown
    assert "ended by max_turns" in shown


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--env", "nowhere"], "nowhere"),
        (["--env", "twice"], "two tools called 'do'"),
        (["--set", "agent.max_turn=3"], "max_turns"),
        (["--set", "trainer.steps=3"], "no section 'trainer' here"),
        (["--model", "pocket"], "the chat template ignores tools"),
    ],
)
def test_what_cannot_be_played_is_refused(
    more: list[str], says: str, naughty: Path, small_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words(small_model, *more)) == 2
    assert says in capsys.readouterr().err


def test_settings_without_an_environment_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["generate", "--prompt", "x", "--set", "agent.max_turns=3"]) == 2
    assert "would have no effect" in capsys.readouterr().err


@pytest.mark.parametrize("setting", ["agent=react", "agent.name=react", "environment=lookup"])
def test_another_component_is_not_chosen_by_a_setting(setting: str) -> None:
    with pytest.raises(ConfigError, match="cannot be chosen by --set"):
        Stage.chosen("tools", [setting])


def test_a_file_of_tools_may_have_dataclasses(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    point = "@dataclass\nclass P:\n    x: int\n\ndef twice(x: int) -> int:\n    return 2 * P(x).x\n"
    file.write_text(f"from __future__ import annotations\nfrom dataclasses import dataclass\n\n{point}")
    assert load_functions(str(file))["twice"].call(x=2) == "4"
