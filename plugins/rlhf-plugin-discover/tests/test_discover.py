"""`rlhf discover`: rounds with exact feedback, the archive, budgets, resumption, bad input."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.config import Registry
from rlhf_core.data import Prompt
from rlhf_core.rewards import Sample
from rlhf_plugin_discover.archive import Archive, Journal, Verdict
from rlhf_plugin_discover.conversation import again, messages, verdict_text
from rlhf_plugin_discover.kissing.check import check_kissing
from rlhf_plugin_discover.tasks import load_task
from rlhf_plugin_verifiers.reward_config import NumericVerifierConfig
from rlhf_testing import make_context

Command = Callable[..., tuple[int, str]]
QUICK = ("--set", "verifier.sandbox.timeout_s=5", "--set", "workers=1")


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def summary(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "summary.json").read_text())


def points(folder: Path) -> list[list[int]]:
    space: dict[str, Any] = {}
    exec((folder / "best.py").read_text(), space)
    return space["points"]


@pytest.mark.usefixtures("judges")
def test_proposals_climb_on_exact_feedback(command: Command, tmp_path: Path) -> None:
    folder, question_log = tmp_path / "run", tmp_path / "questions.jsonl"
    code, err = command(
        "discover",
        "kissing",
        "--judge",
        "climber",
        "--run-dir",
        folder,
        *QUICK,
        "--set",
        f"judge.log={question_log}",
        "--set",
        "budget.rounds=4",
        "--set",
        "samples=3",
    )
    assert (code, "programs run in: " in err) == (0, True)
    result = summary(folder)
    assert (result["start"], result["rounds"], result["proposals"], result["calls"]) == (22.0, 4, 12, 13)
    assert result["cost_usd"] == pytest.approx(0.013), "the last question is paid for, too"
    assert result["best"] > 25
    assert result["best"] == len(points(folder)) == json.loads((folder / "best.json").read_text())["score"]
    assert check_kissing(points(folder), 11).valid
    assert result["isolation"] == json.loads((folder / "discover.json").read_text())["isolation"] != ""
    log = json.loads((folder / "conversation_log.json").read_text())["attempts"]
    failed = [a for a in log if a["verdict"]["detail"]]
    assert failed
    assert all("minimum squared distance 0 < maximum squared norm 4" in a["verdict"]["detail"] for a in failed)
    question_of = dict(map(tuple, rows(question_log)))
    later_questions = [
        question_of[f"kissing/{a['round']}/{a['slot']}"] for a in rows(folder / "proposals.jsonl") if a["shown"]
    ]
    assert any(failed[0]["verdict"]["detail"] in text for text in later_questions), "the very error goes back"
    report = (folder / "report.md").read_text()
    assert f"# kissing: {result['best']:g} vectors" in report
    sections = ["## Methodology", "## Prompts", "## Result", "## Reflection"]
    assert [line for line in report.splitlines() if line.startswith("## ")] == sections
    assert "**The largest rise, answered:**" in report
    assert f"> {failed[0]['verdict']['detail'][:60]}" in report, "and the first failure"
    assert "What did you try" in question_of["kissing/reflection"]
    assert "> I add vectors." in report.partition("## Reflection")[2], "the model's own words"


@pytest.mark.usefixtures("judges")
@pytest.mark.parametrize(
    ("setting", "ended", "calls"),
    [
        ("budget.calls=5", "5 calls are made", 5),
        ("budget.usd=0.0045", "0.0040 USD are spent", 4),
        ("budget.target=24", "the score of 24 is reached", 4),
    ],
)
def test_a_budget_is_never_exceeded(command: Command, tmp_path: Path, setting: str, ended: str, calls: int) -> None:
    """The dollar budget holds from the second round on: only then is it known what an answer costs."""
    folder = tmp_path / "run"
    assert (
        command(
            "discover",
            "kissing",
            "--judge",
            "climber",
            "--run-dir",
            folder,
            *QUICK,
            "--set",
            "samples=3",
            "--set",
            setting,
        )[0]
        == 0
    )
    assert (summary(folder)["ended"], summary(folder)["calls"]) == (ended, calls)
    words = (folder / "report.md").read_text().partition("## Reflection")[2]
    assert ("used up before the model could be asked" in words) == (setting != "budget.target=24")


@pytest.mark.usefixtures("judges")
def test_the_last_question_counts_and_its_failure_leaves_a_finished_search(command: Command, tmp_path: Path) -> None:
    folder, words = tmp_path / "run", (*QUICK, "--set", "samples=1", "--set", "budget.rounds=1")
    asked = ("--set", "budget.usd=0.0035", "--set", "judge.fail_at=reflection")
    code, _ = command("discover", "kissing", "--judge", "climber", "--run-dir", folder, *words, *asked)
    assert (code, summary(folder)["ended"], summary(folder)["calls"]) == (1, "1 rounds are done", 1)
    for calls in (2, 3, 3):
        assert command("discover", "--resume", folder, "--set", "judge.fail_at=''")[0] == 0
        found = summary(folder)
        assert (found["calls"], found["cost_usd"]) == (calls, pytest.approx(calls * 0.001))


@pytest.mark.usefixtures("judges")
@pytest.mark.parametrize(
    ("extract", "after"),
    [("first_block", "```python\npoints = [[1] * 11]\n```\n"), pytest.param("strict", "", marks=pytest.mark.slow)],
)
def test_the_program_that_is_kept_is_the_one_that_was_judged(
    command: Command, tmp_path: Path, extract: str, after: str
) -> None:
    folder = tmp_path / "run"
    assert (
        command(
            "discover",
            "kissing",
            "--judge",
            "climber",
            "--run-dir",
            folder,
            *QUICK,
            "--set",
            "samples=2",
            "--set",
            "budget.rounds=1",
            "--set",
            f"verifier.extract={extract}",
            "--set",
            f"judge.after={json.dumps(after)}",
        )[0]
        == 0
    )
    start, *verdicts = rows(folder / "verdicts.jsonl")
    assert (start["score"], len(verdicts)) == (22.0, 2)
    for verdict in [start, *verdicts]:
        space: dict[str, Any] = {}
        exec(verdict["program"], space)
        assert check_kissing(space["points"], 11).valid == bool(verdict["parts"]["valid"])
        assert verdict["score"] in (len(space["points"]), 0.0)
    assert max(v["score"] for v in verdicts) > 22


@pytest.mark.long
@pytest.mark.slow
def test_a_killed_discovery_goes_on_as_if_nothing_had_happened(command: Command, judges: Path, tmp_path: Path) -> None:
    options = ("--judge", "climber", *QUICK, "--set", "budget.rounds=3", "--set", "samples=2")
    uninterrupted, killed = tmp_path / "uninterrupted", tmp_path / "killed"
    assert command("discover", "kissing", *options, "--run-dir", uninterrupted)[0] == 0
    command_line = [
        sys.executable,
        "-m",
        "rlhf_core.cli.main",
        "discover",
        "kissing",
        *options,
        "--run-dir",
        str(killed),
        "--set",
        "judge.kill_at=2/1",
    ]
    env = {**os.environ, "PYTHONPATH": str(judges)}
    assert subprocess.run(command_line, env=env, check=False, capture_output=True).returncode == -signal.SIGKILL
    proposals = rows(killed / "proposals.jsonl")
    assert [p["id"] for p in proposals] == ["0/0", "0/1", "1/0", "1/1"]
    with (killed / "proposals.jsonl").open("a") as file:
        file.write('{"id": "2/0", "rou')
    verdicts = (killed / "verdicts.jsonl").read_text().splitlines(keepends=True)
    (killed / "verdicts.jsonl").write_text("".join(verdicts[:-1]))
    assert command("discover", "--resume", killed, "--set", "judge.kill_at=''")[0] == 0
    keys = ("id", "parent", "shown", "messages", "reply")
    assert [[p[k] for k in keys] for p in rows(killed / "proposals.jsonl")] == [
        [p[k] for k in keys] for p in rows(uninterrupted / "proposals.jsonl")
    ]
    assert (killed / "best.py").read_text() == (uninterrupted / "best.py").read_text()
    assert command("discover", "--resume", killed, "--set", "budget.rounds=4")[0] == 0
    assert summary(killed)["rounds"] == 4


@pytest.mark.slow
@pytest.mark.usefixtures("judges")
def test_a_model_that_writes_no_program_gets_that_as_feedback(command: Command, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert (
        command(
            "discover",
            "kissing",
            "--judge",
            "native_pocket",
            "--run-dir",
            folder,
            *QUICK,
            "--set",
            "budget.rounds=2",
            "--set",
            "samples=2",
        )[0]
        == 0
    )
    result, verdicts = summary(folder), rows(folder / "verdicts.jsonl")
    assert (result["best"], result["valid"], result["proposals"]) == (22.0, 0, 4)
    assert all(v["score"] == 0.0 and v["detail"] for v in verdicts[1:])
    assert any(verdicts[1]["detail"] in m["content"] for p in rows(folder / "proposals.jsonl") for m in p["messages"])


@pytest.mark.usefixtures("judges")
def test_a_judge_without_answers_ends_it(command: Command, tmp_path: Path) -> None:
    code, err = command(
        "discover",
        "kissing",
        "--judge",
        "climber",
        "--run-dir",
        tmp_path / "run",
        *QUICK,
        "--set",
        "judge.silent=true",
        "--set",
        "samples=1",
    )
    assert (code, "no answer in 2 rounds" in err, "no such model" in err, "--resume" in err) == (1, True, True, True)


@pytest.mark.usefixtures("judges")
def test_a_folder_is_a_task(command: Command, tmp_path: Path) -> None:
    task = tmp_path / "large"
    task.mkdir()
    (task / "task.yaml").write_text(
        "unit: squares\nverifier: {name: construction, check: check.py, variable: numbers}\n"
    )
    (task / "prompt.md").write_text("List square numbers in `numbers`. Braces {stay}; {timeout_s} seconds.")
    (task / "check.py").write_text(
        "def check(value):\n    for n in value:\n        if int(n ** 0.5) ** 2 != n:\n"
        "            raise ValueError(f'{n} is no square')\n    return len(value)\n"
    )
    (task / "program.py").write_text("numbers = [1, 4, 9]\n")
    folder = tmp_path / "run"
    assert (
        command(
            "discover",
            task,
            "--judge",
            "climber",
            "--run-dir",
            folder,
            *QUICK,
            "--set",
            "budget.rounds=1",
            "--set",
            "samples=1",
        )[0]
        == 0
    )
    assert summary(folder)["start"] == 3.0
    first = rows(folder / "proposals.jsonl")[0]["messages"][0]["content"]
    assert "Braces {stay}; 5 seconds." in first
    assert "numbers = [1, 4, 9]" in first
    assert "Its score is 3 squares" in first
    assert "defines no global variable numbers" in rows(folder / "verdicts.jsonl")[1]["detail"]
    (task / "check.py").write_text("def chek(value): return 1\n")
    code, err = command("discover", task, "--judge", "climber")
    assert (code, "defines no function check(value)" in err) == (2, True)


@pytest.mark.usefixtures("judges")
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ((), "no task is named"),
        (("kising",), "there is no task 'kising'"),
        (("kissing",), "no judge is named"),
        (("kissing", "--judge", "clmber"), "did you mean 'climber'?"),
        (("kissing", "--judge", "climber", "--set", "budget.round=3"), "did you mean 'budget.rounds'?"),
        (("kissing", "--judge", "climber", "--set", "samples=0"), "'samples'"),
        (("kissing", "--judge", "climber", "--set", "verifier.dimensions=0"), "dimensions"),
        (("kissing", "--judge", "climber", "--set", "verifier.dimensions=16"), "dimensions"),
        (("kissing", "--baseline", "--set", "verifier.dimensions=15"), "too many to search"),
        (("--resume", "nowhere"), "'nowhere' holds no discovery"),
    ],
)
def test_bad_input_is_refused(command: Command, line: tuple[str, ...], words: str) -> None:
    code, err = command("discover", *line)
    assert (code, words in err) == (2, True), err


@pytest.mark.usefixtures("judges")
def test_a_taken_folder_and_a_dry_run(command: Command, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "discover.json").write_text("{}")
    code, err = command("discover", "kissing", "--judge", "climber", "--run-dir", tmp_path / "run")
    assert (code, "already holds a discovery" in err) == (2, True)
    assert command("discover", "kissing", "--judge", "climber", "--run-dir", tmp_path / "x", "--dry-run")[0] == 0
    assert not (tmp_path / "x").exists()


def test_the_archive_keeps_one_program_per_score_best_first() -> None:
    archive = Archive(3)
    new = [
        archive.add(Verdict(f"0/{i}", score, "ok", {"valid": float(score is not None)}, "", ""))
        for i, score in enumerate([22.0, 30.0, 30.0, None, 25.0, 40.0, 26.0])
    ]
    assert new == [True, True, False, False, False, True, False]
    assert [v.score for v in archive.best] == [40.0, 30.0, 26.0]
    assert archive.best[1].id == "0/1"


def test_turns_alternate_and_end_with_the_last_verdict() -> None:
    def verdict(name: str, score: float, detail: str = "") -> Verdict:
        return Verdict(name, score, "ok", {"valid": float(not detail)}, detail, f"points = {name!r}")

    turns = messages(
        "Find.", "vectors", verdict("1/0", 40.0), [verdict("2/0", 0.0, "E" * 300), verdict("3/0", 40.0)], 44.0, 200
    )
    assert [t["role"] for t in turns] == ["user", "assistant"] * 3 + ["user"]
    assert "Its score is 40 vectors. The best score so far is 44 vectors." in turns[2]["content"]
    assert "E" * 200 + " [cut]" in turns[4]["content"]
    assert "That is not more than the 40 vectors" in turns[6]["content"]


@pytest.mark.parametrize(("extract", "answer"), [("none", "x = 1\n"), ("strict", "```python\nx = 1\n```")])
def test_the_program_to_begin_with_is_handed_in_as_the_verifier_reads_it(extract: str, answer: str) -> None:
    task = load_task("kissing", Registry(disabled=()), {"extract": extract})
    assert task.answer("x = 1\n") == answer
    assert task.program(answer) == "x = 1\n"
    assert task.answer("") == ""


def test_prompt_and_program_to_begin_with_have_the_dimensions_that_are_asked_for() -> None:
    task = load_task("kissing", Registry(disabled=()), {"dimensions": 3})
    assert "integer vectors in 3 dimensions" in task.question
    assert "a list of 3 Python integers" in task.question
    space: dict[str, Any] = {}
    exec(task.starter, space)
    assert check_kissing(space["points"], 3).valid
    assert len(space["points"]) == 6


def test_what_a_verifier_says_of_a_right_answer_is_no_error() -> None:
    config = NumericVerifierConfig(name="numeric")
    prompt = Prompt("p", ({"role": "user", "content": "?"},), "18")
    feedback: list[str] = []
    for number in (18, 17):
        score = config.build(make_context()).verify(Sample(prompt, f"The answer is {number}."))
        assert score.detail == f"stated {number}"
        verdict = Verdict("0/0", score.value, "ok", score.parts, score.detail, "x")
        feedback.append(verdict_text(verdict, "points", 200) + again(verdict, verdict, "points"))
    assert "This program is valid. Its score is 1 points." in feedback[0]
    assert "Try another idea" in feedback[0]
    assert "failed with this error:\n\nstated 17" in feedback[1]


def test_a_torn_line_is_cut_off(tmp_path: Path) -> None:
    (tmp_path / "rounds.jsonl").write_text('{"round": 0, "seconds": 1.5}\n{"round": 1, "sec')
    journal = Journal(tmp_path)
    journal.end_round({"round": 1, "seconds": 2})
    assert (journal.seconds, len(rows(tmp_path / "rounds.jsonl"))) == (3.5, 2)
    journal.close()
