"""The environment `lookup`: its questions, what it answers and pays for, and what goes with it by itself."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from rlhf_core.cli.main import main
from rlhf_core.config.load import validate
from rlhf_core.plugins.registry import Registry
from rlhf_core.types.messages import ToolCall, ToolResult, TurnStatus
from rlhf_core.types.rollouts import Prompt, Sample
from rlhf_plugin_episodes.lookup.config import LookupConfig, LookupDataConfig
from rlhf_plugin_episodes.lookup.environment import Lookup
from rlhf_plugin_episodes.lookup.questions import CALLS, draw_question
from rlhf_plugin_episodes.lookup.source import LookupSource
from rlhf_plugin_episodes.lookup.world import names_of, world
from rlhf_testing import check_dataset, check_environment


def call(tool: str, argument: str) -> ToolCall:
    return ToolCall(tool, {"query" if tool == "search" else "expression": argument}, "call00000")


def prompt(row: dict) -> Prompt:
    meta = {key: row[key] for key in ("calls", "plan")}
    return Prompt(row["id"], ({"role": "user", "content": row["prompt"]},), row["answer"], meta=meta)


def test_conforms() -> None:
    check_environment(LookupConfig())
    check_environment(
        LookupConfig(step_reward=0.1), calls=[("search", {"query": "x"}), ("calculator", {"expression": "(("})]
    )
    check_dataset(LookupDataConfig(prompts=50))


@pytest.mark.parametrize("calls", CALLS)
def test_the_environment_answers_each_plan_as_written_and_its_answer_is_right(calls: int) -> None:
    source = LookupSource(LookupDataConfig(prompts=60, calls=(calls,)))
    environment = Lookup(LookupConfig(step_reward=0.5))
    for row in [*source.rows("train")[:40], *source.rows("heldout")]:
        asked = prompt(dict(row))
        environment.reset(asked, 0)
        assert len(row["plan"]) == calls
        results = [environment.step([call(tool, argument)])[0] for tool, argument, _ in row["plan"]]
        assert [r.content for r in results] == [text for _, _, text in row["plan"]]
        assert sum(r.score or 0 for r in results) == 0.5 * len({(t, x) for t, _, x in row["plan"]})
        assert environment.score(Sample(asked, f"The answer is {row['answer']}.")).value == 1
        assert environment.score(Sample(asked, f"{row['answer']}, so it is {int(row['answer']) + 1}")).value == 0
        assert environment.score(Sample(asked, "I do not know.")).parts == {"right": 0, "answered": 0}
        assert environment.score(Sample(Prompt("x", asked.messages), "7")).value is None


def test_nobody_is_in_both_splits_and_other_seeds_have_other_facts() -> None:
    train, held = (LookupSource(LookupDataConfig()).rows(split) for split in ("train", "heldout"))
    assert (len(train), len(held)) == (2000, 400)
    assert not set(names_of("train")) & set(names_of("heldout"))
    held_people = set(world(0, "heldout").people)
    assert all(not any(name in row["prompt"] for name in held_people) for row in train[:200])
    assert world(0, "train").facts != world(1, "train").facts
    rows = [draw_question(world(3, "train"), 4, random.Random(5)) for _ in range(2)]
    assert rows[0] == rows[1]


def test_what_a_policy_may_write_is_answered() -> None:
    environment = Lookup(LookupConfig())
    name = world(0, "heldout").people[0]
    environment.reset(Prompt("x", ({"role": "user", "content": "?"},)), 0)
    queries = [f"age of {name}", f"{name.upper()}'s AGE?", "age of Nobody Here", "", f"shoe size of {name}"]
    told = environment.step([call("search", query) for query in queries])
    assert told[0].content == told[1].content == f"The age of {name} is {world(0, 'heldout').facts['age', name]}."
    assert [one.content for one in told[2:]] == ["Nothing found."] * 3
    sums = environment.step([call("calculator", text) for text in ("12*12", "__import__('os')", "9**9**9")])
    assert sums[0] == ToolResult("144")
    assert [one.status for one in sums[1:]] == [TurnStatus.ERROR] * 2


def test_a_number_of_calls_that_no_question_takes_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main(["train", "--algo", "grpo", "--env", "lookup", "--set", "dataset.calls=[2, 7]", "--dry-run"])
    assert done.value.code == 2
    assert "its questions take two to six calls" in capsys.readouterr().err


@pytest.mark.slow
def test_an_environment_brings_model_data_and_settings_which_the_user_may_replace(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def config(*words: str) -> dict:
        with pytest.raises(SystemExit) as done:
            main(["train", "--algo", "grpo", "--env", "lookup", *words, "--dry-run", "--json"])
        assert done.value.code == 0
        return json.loads(capsys.readouterr().out)["config"]

    plan = config()
    names = [plan[key]["name"] for key in ("environment", "agent", "reward")]
    assert names == ["lookup", "multi_turn", "environment"]
    assert plan["model"]["path"] == "pocket-tools"
    assert plan["dataset"]["sources"][0]["source"]["name"] == "lookup"
    assert plan["trainer"]["sampling"]["max_tokens"] == 400
    other = config("--dataset", "pocket/arithmetic", "--set", "trainer.sampling.max_tokens=99")
    assert other["dataset"]["sources"][0]["source"]["name"] == "pocket"
    assert other["trainer"]["sampling"]["max_tokens"] == 99


@pytest.mark.parametrize(("algo", "rate"), [("ppo", 5e-4), ("sft", 1e-3)])
def test_algorithms_have_settings_for_the_tool_user(algo: str, rate: float) -> None:
    plays = {} if algo == "sft" else {"environment": "lookup"}
    slots = {"trainer": algo, "model": {"path": "pocket-tools"}, "dataset": "lookup", **plays}
    config = validate(Registry(disabled=()), slots)
    assert config.trainer.optimizer.learning_rate == rate
    assert getattr(config.trainer, "rollout_batch_size", 128) == 128


def test_demonstrations_of_a_data_set_are_written_as_rows_that_training_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "demos.jsonl"
    words = ["data", "demonstrations", "lookup", "--out", str(file), "--set", "prompts=20"]
    for code in (0, 2):
        with pytest.raises(SystemExit) as done:
            main(words)
        assert done.value.code == code
    assert "is there already" in capsys.readouterr().err
    with pytest.raises(SystemExit) as done:
        main([*words[:4], str(tmp_path), "--force"])
    assert done.value.code == 2
    assert "is a folder" in capsys.readouterr().err
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(rows) == 20
    assert {tool["function"]["name"] for tool in rows[0]["tools"]} == {"search", "calculator"}
    assert [turn["role"] for turn in rows[0]["messages"]] == ["user", *["assistant", "tool"] * 2, "assistant"]
    with pytest.raises(SystemExit) as done:
        main(["data", "check", str(file), "--algo", "sft", "--model", "pocket-tools", "--set", "trainer.learn=all"])
    assert done.value.code == 0


@pytest.mark.slow
def test_the_shipped_model_plays_and_learns_by_the_default_command(tmp_path: Path) -> None:
    changes = [
        "trainer.steps=1",
        "trainer.rollout_batch_size=16",
        "trainer.eval_samples=48",
        "dataset.calls=[2]",
        "dataset.prompts=240",
    ]
    words = [word for change in changes for word in ("--set", change)]
    for algo, more in (
        ("grpo", ["--env", "lookup", *words]),
        ("sft", ["--model", "pocket-tools", "--dataset", "lookup"]),
    ):
        limit = ["--set", "trainer.max_steps=1", "--set", "dataset.prompts=40"] if algo == "sft" else []
        with pytest.raises(SystemExit) as done:
            main(["train", "--algo", algo, *more, *limit, "--run-dir", str(tmp_path / algo)])
        assert done.value.code == 0
        assert (tmp_path / algo / "final" / "model.safetensors").is_file()
    rows = [json.loads(line) for line in (tmp_path / "grpo" / "metrics.jsonl").read_text().splitlines()]
    assert rows[0]["eval/reward/mean"] > 0.25, "most questions of two calls need two tools used well"
    assert rows[1]["environment_tokens"] > 0
