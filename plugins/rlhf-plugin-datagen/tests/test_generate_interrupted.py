"""Generation that is interrupted: no answer, refusals, errors, kill -9, a second process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.data import read_jsonl

Command = Callable[..., tuple[int, str]]
pytestmark = pytest.mark.usefixtures("rule_judge")
RULES = "--judge", "rule", "--generator", "rule"


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return path


def rows(path: Path) -> list[dict[str, Any]]:
    return list(read_jsonl(path))


def left_out(path: Path) -> list[dict[str, Any]]:
    return rows(path.with_name(path.name + ".left_out.jsonl"))


def test_what_got_no_answer_is_asked_again_by_the_same_command(prompts: Path, tmp_path: Path, command: Command) -> None:
    out, down, log = tmp_path / "sft.jsonl", tmp_path / "down.jsonl", tmp_path / "log"
    arguments = ("data", "generate", "sft", "--judge", "rule", "--dataset", prompts, "--set", f"log={log}")
    flaky = (*arguments, "--set", "manner=flaky", "--output", out)
    code, err = command(*flaky)
    assert code == 1
    assert "stopped" not in err  # the others of the batch were answered
    assert {r["id"] for r in rows(out)} == {f"questions/{i}" for i in range(12)} - {"questions/3"}
    (tmp_path / "log.up").touch()
    code, err = command(*flaky)
    assert code == 0, err
    assert sorted(r["id"] for r in rows(out)) == sorted(f"questions/{i}" for i in range(12))
    code, err = command(*arguments, "--set", "manner=down", "--batch-size", 4, "--output", down)
    assert code == 1
    assert "stopped: nothing of this batch was answered; first: timeout: no answer in 1 s" in err
    assert not rows(down)


def test_a_refusal_that_was_billed_is_an_answer(prompts: Path, tmp_path: Path, command: Command) -> None:
    out, log = tmp_path / "pairs.jsonl", tmp_path / "log"
    arguments = (
        "data",
        "generate",
        "preferences",
        *RULES,
        "--generator-set",
        "manner=refuses",
        "--generator-set",
        f"log={log}",
        "--dataset",
        prompts,
        "--output",
        out,
    )
    for _ in range(2):
        code, err = command(*arguments)
        assert (code, "12 left out (empty_response 12)" in err) == (2, True), err
    assert {r["left_out"] for r in left_out(out)} == {"empty_response"}
    assert left_out(out)[0]["usage"]["cost_usd"] == pytest.approx(2 * 0.00015)
    assert len(log.read_text().splitlines()) == 2 * 12  # asked once


def test_prompts_that_cannot_be_answered_do_not_keep_those_after_them_from_it(
    prompts: Path, tmp_path: Path, command: Command
) -> None:
    out = tmp_path / "sft.jsonl"
    code, err = command(
        "data",
        "generate",
        "sft",
        "--judge",
        "rule",
        "--set",
        "manner=beyond:8",
        "--dataset",
        prompts,
        "--batch-size",
        4,
        "--output",
        out,
    )
    assert code == 1
    assert "stopped" not in err
    assert [r["id"] for r in rows(out)] == [f"questions/{i}" for i in range(8, 12)]


def test_errors_without_end_stop_the_command(tmp_path: Path, command: Command) -> None:
    prompts = write(tmp_path / "many.jsonl", [{"id": str(i), "prompt": f"Question {i}?"} for i in range(200)])
    log = tmp_path / "log"
    code, err = command(
        "data",
        "generate",
        "sft",
        "--judge",
        "rule",
        "--set",
        "manner=beyond:1000",
        "--set",
        f"log={log}",
        "--dataset",
        prompts,
        "--output",
        tmp_path / "sft.jsonl",
    )
    assert code == 1
    assert "stopped: nothing of this batch was answered; first: error: the question is too long" in err
    assert len(log.read_text().splitlines()) == 64


def exit_code(arguments: list[str], kill_after: float | None) -> int:
    """Run the command in a process of its own, or kill it (SIGKILL) after some seconds of its work."""
    process = subprocess.Popen(
        [sys.executable, "-m", "rlhf_core.cli.main", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    if kill_after is not None:
        process.stderr.readline()  # the estimate
        process.stderr.readline()  # the first batch is written
        time.sleep(kill_after)
        os.kill(process.pid, signal.SIGKILL)
    _, err = process.communicate(timeout=120)
    assert kill_after is not None or process.returncode == 0, err
    return process.returncode


@pytest.mark.slow
def test_kill_9_loses_no_row_and_makes_none_twice(prompts: Path, tmp_path: Path, command: Command) -> None:
    shared = ["--dataset", str(prompts), *RULES, "--batch-size", "1"]
    uninterrupted, killed = tmp_path / "uninterrupted.jsonl", tmp_path / "killed.jsonl"
    assert command("data", "generate", "preferences", *shared, "--output", uninterrupted)[0] == 0
    slow = [
        "data",
        "generate",
        "preferences",
        *shared,
        "--set",
        "delay_s=0.05",
        "--set",
        "manner=rule",
        "--output",
        str(killed),
    ]
    assert [exit_code(slow, 0.02 * n) for n in (1, 4)] == [-9, -9]
    with killed.open("a") as file:
        file.write('{"id": "questions/99", "prompt": [{"ro')  # what a kill inside a write leaves
    exit_code(slow, None)
    assert len(rows(killed)) + len(left_out(killed)) == 12
    for read in (rows, left_out):
        assert {r["id"]: r for r in read(killed)} == {r["id"]: r for r in read(uninterrupted)}
        assert len({r["id"] for r in read(killed)}) == len(read(killed))


def test_a_second_process_and_foreign_files_are_refused(prompts: Path, tmp_path: Path, command: Command) -> None:
    from rlhf_plugin_datagen.store import Store

    out = tmp_path / "out.jsonl"
    arguments = ("data", "generate", "sft", "--judge", "rule", "--dataset", prompts, "--output")
    store = Store(out, {})
    code, err = command(*arguments, out)
    store.close()
    assert (code, "another process" in err) == (2, True)
    code, err = command(*arguments, write(tmp_path / "other.jsonl", [{"id": "a"}]))
    assert (code, "not written by this command" in err) == (2, True)
