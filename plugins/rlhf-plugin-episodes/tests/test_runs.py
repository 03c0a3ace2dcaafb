"""`rlhf train` in an environment: killed in the middle of an episode, it goes on as if nothing had been."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rlhf_core.cli.main import main
from tests.resume.runs import Left, check_same, read_run, train

SETTINGS = {
    "threads": 1,
    "trainer.steps": 3,
    "trainer.rollout_batch_size": 8,
    "trainer.group_size": 4,
    "trainer.train_batch_size": 8,
    "trainer.sampling.max_tokens": 80,
    "trainer.eval_samples": 2,
    "trainer.eval_every": 3,
    "trainer.checkpoint_every": 1,
    "trainer.kl.coefficient": 0.1,
    "agent.max_turn_tokens": 5,
    "agent.call_timeout_s": 60,
    "agent.workers": 4,
}


def arguments(model: Path, folder: Path, run: str, **more: object) -> list[str]:
    """A run of a few seconds in the environment that writes down what it does."""
    rows = [{"id": f"q{n}", "prompt": f"What is {n}?"} for n in range(24)]
    data = folder / "prompts.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {**SETTINGS, "environment.file": folder / f"{run}.txt", **more}
    sets = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    names = ["train", "--algo", "grpo", "--env", "effects", "--model", str(model), "--dataset", str(data)]
    return [*names, *sets, "--run-dir", str(folder / run)]


def start(words: list[str], folder: Path) -> int:
    """`rlhf` in a process of its own, which finds the environment's distribution."""
    env = {
        **os.environ,
        "PYTHONPATH": f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "rlhf_core.cli.main", *words]
    done = subprocess.run(command, env=env, capture_output=True, timeout=240, check=False)
    print(done.stdout.decode()[-2000:], done.stderr.decode()[-4000:])
    return done.returncode


def untimed(run: Path) -> Left:
    """What a run left, without the seconds that its environment took."""
    left = read_run(run)
    timeless = {name: re.sub(r', "seconds": [0-9.e-]+', "", text) for name, text in left.streams.items()}
    left.summary.pop("config", None)
    return left._replace(streams=timeless)


@pytest.mark.slow
@pytest.mark.parametrize("staleness", [pytest.param(0, marks=pytest.mark.long), 1])
def test_killed_inside_an_episode_it_resumes_bit_for_bit_and_repeats_no_side_effect(
    staleness: int, naughty: Path, small_model: Path
) -> None:
    ahead = {"trainer.rollouts.max_staleness": staleness}
    assert train(*arguments(small_model, naughty, "whole", **ahead)[1:]) == 0
    words = arguments(small_model, naughty, "killed", **ahead)
    (naughty / "killed.txt.kill").touch()
    assert start(words, naughty) == -9
    assert not (naughty / "killed" / "summary.json").exists()
    assert train("--resume", str(naughty / "killed")) == 0
    whole, killed = untimed(naughty / "whole"), untimed(naughty / "killed")
    check_same(whole, killed)
    effects = [sorted((naughty / f"{run}.txt").read_text().splitlines()) for run in ("whole", "killed")]
    assert effects[0] == effects[1]
    assert len(effects[0]) > 24
    assert whole.at(3)["turns/mean"] > 1
    assert whole.at(3)["environment_tokens"] > 0


def test_an_environment_brings_its_agent_and_its_reward(
    naughty: Path, small_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = arguments(small_model, naughty, "run")
    with pytest.raises(SystemExit) as done:
        main([*words, "--dry-run", "--json"])
    assert done.value.code == 0
    config = json.loads(capsys.readouterr().out)["config"]
    assert (config["agent"]["name"], config["reward"]["name"]) == ("multi_turn", "environment")
    assert config["environment"]["file"].endswith("run.txt")


def test_prompts_that_offer_tools_which_nothing_answers_are_refused_with_their_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fly = {"type": "function", "function": {"name": "fly", "description": "", "parameters": {"type": "object"}}}
    rows = [{"prompt": f"What is {n}?", "answer": str(n), **({"tools": [fly]} if n == 2 else {})} for n in range(24)]
    data = tmp_path / "prompts.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["train", "--algo", "grpo", "--env", "tools", "--reward", "verifier", "--model", "pocket-tools"]
    for n, code in ((0, 2), (1, 0)):
        if n:
            data.write_text(data.read_text().replace('"fly"', '"calculator"'))
        with pytest.raises(SystemExit) as done:
            main([*words, "--dataset", str(data), "--set", "trainer.sampling.max_tokens=99", "--dry-run"])
        shown = " ".join(capsys.readouterr().err.split())
        assert done.value.code == code, shown
        if code:
            assert "a prompt offers the tool 'fly', which environment 'tools' does not have" in shown
            assert "prompts.jsonl, line 3" in shown or "prompts.jsonl:3" in shown, shown


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--set", "agent.name=single_turn"], "agent 'single_turn' does not use environment"),
        (
            ["--env", "tools", "--reward", "environment", "--set", "environment.tools=[calculator, calculator]"],
            "two tools called 'calculator'",
        ),
        (["--env", "nowhere"], "nowhere"),
        (["--env", "tools", "--reward", "environment", "--set", "environment.tools=[]"], "'tools' has no tools"),
        (["--set", "agent.max_turns=0"], "max_turns"),
        (["--model", "pocket"], "the chat template ignores tools"),
    ],
)
def test_what_cannot_work_is_refused_before_any_work(
    words: list[str], says: str, naughty: Path, small_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = naughty / "prompts.jsonl"
    data.write_text("".join(json.dumps({"id": f"q{n}", "prompt": f"What is {n}?"}) + "\n" for n in range(24)))
    kept = [
        "train",
        "--algo",
        "grpo",
        *(() if "--env" in words else ("--env", "effects")),
        "--model",
        str(small_model),
        "--dataset",
        str(data),
    ]
    kept += ["--set", "trainer.rollout_batch_size=8", "--set", "trainer.group_size=4"]
    kept += ["--set", "trainer.sampling.max_tokens=40", "--run-dir", str(naughty / "run")]
    with pytest.raises(SystemExit) as done:
        main([*kept, *words, "--dry-run"])
    assert done.value.code == 2
    assert says in capsys.readouterr().err
    assert not (naughty / "run").exists()
