"""`rlhf generate` samples what a run would sample, and refuses what cannot work."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Rlhf = Callable[..., Any]


def test_the_seed_decides_the_text(rlhf: Rlhf) -> None:
    args = ("generate", "--prompt", "What is 2 + 3?", "--n", 4, "--json")
    rows = json.loads(rlhf(*args).out)
    assert [len(r["completions"]) for r in rows] == [4]
    assert len({c["seed"] for c in rows[0]["completions"]}) == 4
    assert json.loads(rlhf(*args).out) == rows
    other = json.loads(rlhf(*args, "--seed", 1).out)
    assert [c["seed"] for c in other[0]["completions"]] != [c["seed"] for c in rows[0]["completions"]]


def test_options_reach_the_engine(rlhf: Rlhf, tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text(
        '{"id": "a", "prompt": "What is 2 + 3?"}\n{"messages": [{"role": "user", "content": "What is 9 - 4?"}]}\n'
    )
    out = rlhf("generate", "--input", file, "--temperature", 0, "--max-tokens", 3, "--n", 2, "--json")
    rows = json.loads(out.out)
    assert [r["id"] for r in rows] == ["a", "in/1"]
    assert rows[0]["completions"][0]["text"] == rows[0]["completions"][1]["text"]
    assert {c["finish_reason"] for r in rows for c in r["completions"]} == {"length"}
    assert {c["tokens"] for r in rows for c in r["completions"]} == {3}
    out = rlhf("generate", "--prompt", "What is 2 + 3?", "--temperature", 0, "--stop", "answer", "--json")
    stopped = json.loads(out.out)
    assert stopped[0]["completions"][0]["finish_reason"] == "stop"
    assert stopped[0]["completions"][0]["text"].endswith("answer")


def test_prints_prompt_and_completions(rlhf: Rlhf) -> None:
    out = rlhf("generate", "--prompt", "What is 2 + 3?", "--temperature", 0, "--max-tokens", 2)
    assert out.code == 0
    assert out.out.startswith("What is 2 + 3?\n  ")
    assert "[cut at --max-tokens]" in out.out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "there is no prompt"),
        (("--prompt", " "), "--prompt is empty"),
        (("--input", "missing.jsonl"), "'missing.jsonl' does not exist"),
        (("--prompt", "x", "--model", "./no-model"), "no model folder './no-model'"),
        (("--prompt", "x", "--max-tokens", "9999"), "lower --max-tokens"),
        (("--prompt", "x", "--min-tokens", "9", "--max-tokens", "8"), "--min-tokens 9 is above --max-tokens 8"),
        (("--prompt", "x", "--temperature", "-1"), "--temperature"),
        (("--prompt", "x", "--top-p", "0"), "--top-p"),
        (("--prompt", "x", "--temprature", "1"), "--temperature"),
        (("--prompt", "x", "--set", "model.path=pocket"), "model.path is given by --model"),
        (("--prompt", "x", "--set", "model.prompt_format=raw"), "model.prompt_format is given by --prompt-format"),
        (("--prompt", "x", "--set", "model.where=x"), "unknown key 'where'"),
        (("--prompt", "x", "--engine-set", "model=pocket"), "unknown key 'model'"),
        (("--prompt", "x", "--engine-set", "name=vllm"), "--engine vllm"),
        (("--prompt", "x", "--engine-set", "engine=native"), "unknown key 'engine'"),
    ],
)
def test_wrong_input(rlhf: Rlhf, args: tuple[str, ...], message: str) -> None:
    out = rlhf("generate", *args)
    assert out.code == 2
    assert message in out.err
    assert "Traceback" not in out.err


def test_a_reward_model_does_not_speak(rlhf: Rlhf, reward_run: Path) -> None:
    out = rlhf("generate", "--model", reward_run / "final", "--prompt", "What is 2 + 3?")
    assert out.code == 2
    assert "LlamaForSequenceClassification, which cannot generate text" in out.err
    out = rlhf("generate", "--model", reward_run, "--prompt", "What is 2 + 3?")
    assert "LlamaForSequenceClassification, which cannot generate text" in out.err


def read_jsonl(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    """``stdin(b"text")``: what the next command reads."""

    def give(text: bytes) -> None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text), encoding="utf-8"))

    return give


SHORT = ("--temperature", 0, "--max-tokens", 3)


def test_plain_lines_from_stdin(rlhf: Rlhf, stdin: Callable[[bytes], None]) -> None:
    stdin("\ufeff\nWhat is 2 + 3?\r\n\n   \nWhat is 9 - 4?".encode())
    ran = rlhf("generate", "-", *SHORT, "--out", "-")
    rows = read_jsonl(ran.out)
    assert [row["messages"][0]["content"] for row in rows] == ["What is 2 + 3?", "What is 9 - 4?"]
    assert [row["id"] for row in rows] == ["stdin/0", "stdin/1"]
    assert all(row["tokens"] == 3 and row["completion"] for row in rows)


def test_files_and_stdin_of_both_forms_give_the_same(rlhf: Rlhf, stdin: Callable[[bytes], None]) -> None:
    Path("a.txt").write_text('What is 2 + 3?\n{"prompt": "Hi"}\n')
    Path("a.jsonl").write_text('{"prompt": "What is 2 + 3?"}\n\n{"prompt": "{\\"prompt\\": \\"Hi\\"}"}\n')
    outs = [rlhf("generate", name, *SHORT, "--json").out for name in ("a.txt", "a.jsonl")]
    stdin(Path("a.jsonl").read_bytes())
    outs.append(rlhf("generate", "--input", "-", *SHORT, "--json").out.replace("stdin/", "a/"))
    assert outs[0] == outs[1] == outs[2] != ""


def test_completions_go_on_to_a_reward(rlhf: Rlhf) -> None:
    Path("in.jsonl").write_text('{"id": "a", "prompt": "What is 2 + 3?", "answer": "5"}\n')
    ran = rlhf("generate", "in.jsonl", "--n", 3, "--max-tokens", 8, "--out", "out.jsonl")
    assert ran.out == ""
    assert "3 completions: out.jsonl" in ran.err
    rows = read_jsonl(Path("out.jsonl").read_text())
    assert [(row["id"], row["answer"]) for row in rows] == [("a", "5")] * 3
    assert len({row["seed"] for row in rows}) == 3
    scored = rlhf("reward", "score", "--reward", "verifier", "--input", "out.jsonl")
    assert scored.code == 0, scored.err


@pytest.mark.parametrize(
    ("text", "args", "message"),
    [
        (b"\n \n", ("-",), "there is no prompt in stdin"),
        (b"\xff\xfe", ("-",), "stdin is not text"),
        (b'{"prompt": "x"}\n{broken', ("-",), "stdin:2: not valid JSON"),
        (b'{"answer": "5"}\n', ("-",), "stdin, line 1"),
        (b"x", ("-", "-"), "- is given twice"),
        (b"x", ("-", "--out", "."), "--out . is a folder"),
        (b"x", ("-", "--out", "-", "--json"), "--out and --json are both given"),
        (b"x", ("nothing.txt",), "prompt file 'nothing.txt' does not exist"),
    ],
)
def test_wrong_files(
    rlhf: Rlhf, stdin: Callable[[bytes], None], text: bytes, args: tuple[str, ...], message: str
) -> None:
    stdin(text)
    ran = rlhf("generate", *args)
    assert ran.code == 2
    assert message in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.slow
def test_a_reader_that_leaves_early_is_no_error(tmp_path: Path) -> None:
    command = f"{sys.executable} -m rlhf_core.cli.main generate --prompt Hi --n 200 --max-tokens 1 --out - | head -c 5"
    ran = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, cwd=tmp_path)
    assert ran.stdout == '{"id"'
    assert ran.stderr == ""
