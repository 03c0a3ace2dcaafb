"""`rlhf chat` with stdin as the terminal: every line is a message or a command."""

from __future__ import annotations

import io
import json
import os
import pty
import select
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.models import ModelConfig
from rlhf_core.models.sources import resolve_model
from rlhf_plugin_chat.talker import ChatModel, Settings, TextStream


@pytest.fixture
def chat(rlhf: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """``chat("message", "/reset", args=())``."""

    def run(*lines: str, args: tuple[Any, ...] = ()) -> Any:
        text = "".join(f"{line}\n" for line in lines).encode()
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text), encoding="utf-8"))
        return rlhf("chat", *args)

    return run


@pytest.fixture
def talker() -> ChatModel:
    """The pocket model."""
    return ChatModel.load("pocket", None, None, lambda text: None)


JSON = ("--json", "--max-tokens", 12)


def answers(ran: Any) -> list[str]:
    assert ran.code == 0, ran.err
    return [json.loads(line)["answer"] for line in ran.out.splitlines()]


def test_answers_are_what_the_engine_samples(chat: Callable[..., Any], rlhf: Callable[..., Any]) -> None:
    ran = chat("What is 2 + 3?", args=("--temperature", 0, "--max-tokens", 12))
    sampled = rlhf("generate", "--prompt", "What is 2 + 3?", "--temperature", 0, "--max-tokens", 12, "--json")
    assert ran.out == json.loads(sampled.out)[0]["completions"][0]["text"] + "\n"


def test_a_setting_of_the_model_reaches_its_template(chat: Callable[..., Any], rlhf: Callable[..., Any]) -> None:
    begins = ("--set", "model.assistant_prefix=Of course!")
    greedy = ("--temperature", 0, "--max-tokens", 12)
    sampled = rlhf("generate", "--prompt", "What is 2 + 3?", *greedy, *begins, "--json")
    text = json.loads(sampled.out)[0]["completions"][0]["text"]
    assert chat("What is 2 + 3?", args=(*greedy, *begins)).out == text + "\n"
    assert chat("What is 2 + 3?", args=greedy).out != text + "\n"


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("model.chat_template=plain", "--chat-template"),
        ("agent.max_turns=2", "agent"),
        ("model.assistnt=x", "assistant"),
        ("model=x", "model.KEY=VALUE"),
    ],
)
def test_settings_without_effect_are_refused(chat: Callable[..., Any], setting: str, says: str) -> None:
    ran = chat("hi", args=("--set", setting))
    assert ran.code == 2
    assert says in ran.err


def test_the_seed_decides_and_reset_begins_again(chat: Callable[..., Any]) -> None:
    lines = ("Tell me a story.", "And another.", "/reset", "Tell me a story.", "/seed 5", "Tell me a story.")
    told = answers(chat(*lines, args=JSON))
    assert told == answers(chat(*lines, args=JSON))
    assert told[0] == told[2]
    alone = answers(chat("/seed 5", "Tell me a story.", args=JSON))
    assert answers(chat("Tell me a story.", args=(*JSON, "--seed", 5))) == alone
    assert alone != told[:1]


def test_a_later_answer_knows_the_earlier_ones(talker: ChatModel) -> None:
    settings = Settings(max_tokens=4, system="Be kind.")
    first = talker.answer("What is 2 + 3?", settings, 0, lambda piece: None)
    second = talker.answer("And plus 1?", settings, 1, lambda piece: None)
    text = talker.policy.tokenizer.decode(second.prompt_ids)
    assert "Be kind." in text
    assert "What is 2 + 3?" in text
    assert first.text.strip() in text
    assert len(second.prompt_ids) > len(first.prompt_ids)


def test_tokens_come_one_by_one(talker: ChatModel) -> None:
    pieces: list[str] = []
    rollout = talker.answer("What is 2 + 3?", Settings(max_tokens=12, temperature=0), 0, pieces.append)
    assert "".join(pieces) == rollout.text
    assert len(pieces) >= len(rollout.completion_ids) - 2 > 2


def test_a_letter_is_shown_once_it_is_whole() -> None:
    class Bytes:
        def decode(self, ids: list[int], **options: Any) -> str:
            return bytes(ids).decode(errors="replace")

    pieces: list[str] = []
    stream = TextStream(Bytes(), pieces.append)
    for token in "aé€".encode():
        stream.token(token)
    assert pieces == ["a", "é", "€"]
    stream.end("aé€!")
    assert pieces[-1] == "!"


def test_an_interrupted_answer_is_kept_as_far_as_it_came(talker: ChatModel) -> None:
    shown: list[str] = []

    def write(piece: str) -> None:
        shown.append(piece)
        if len(shown) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        talker.answer("What is 2 + 3?", Settings(max_tokens=12, temperature=0), 0, write)
    assert talker.turns[-1]["role"] == "assistant"
    assert talker.turns[-1]["content"].startswith(shown[0])
    talker.answer("Go on.", Settings(max_tokens=4), 1, lambda piece: None)


def test_oldest_turns_are_left_out_and_it_is_said() -> None:
    said: list[str] = []
    talker = ChatModel.load("pocket", None, None, said.append)
    for turn in range(8):
        talker.answer(f"What is {turn} + 3? " * 4, Settings(max_tokens=12), turn, lambda piece: None)
    assert len(talker.turns) == 16
    assert any("its first 2 turns are left out" in text for text in said), said


def test_two_models_get_the_same_messages(chat: Callable[..., Any], tmp_path: Path) -> None:
    other = shutil.copytree(resolve_model("pocket").path, tmp_path / "other")
    ran = chat("What is 2 + 3?", args=("--compare", other, "--max-tokens", 8))
    assert ran.code == 0, ran.err
    assert ran.out.startswith("[pocket] ")
    assert f"\n[{other}] " in ran.out
    rows = [json.loads(x) for x in chat("Hi", args=(*JSON, "--compare", other)).out.splitlines()]
    assert [row["model"] for row in rows] == ["pocket", str(other)]
    assert rows[0]["seed"] == rows[1]["seed"]


def test_saved_conversations_are_training_data(chat: Callable[..., Any]) -> None:
    ran = chat("/system Be brief.", "What is 2 + 3?", "//slash", "/save talk.jsonl", "/show", args=("--max-tokens", 4))
    assert ran.code == 0, ran.err
    assert "system: Be brief." in ran.err
    (row,) = [json.loads(line) for line in Path("talk.jsonl").read_text().splitlines()]
    assert [m["role"] for m in row["messages"]] == ["system", "user", "assistant", "user", "assistant"]
    assert row["messages"][3]["content"] == "/slash"


def test_retry_draws_other_numbers_for_the_same_message(chat: Callable[..., Any]) -> None:
    rows = [json.loads(x) for x in chat("Tell me a story.", "/retry", "/save x.jsonl", args=JSON).out.splitlines()]
    assert rows[0]["message"] == rows[1]["message"]
    assert rows[0]["seed"] != rows[1]["seed"]
    assert len(json.loads(Path("x.jsonl").read_text())["messages"]) == 2


@pytest.fixture
def base_model(tmp_path: Path) -> Path:
    """The pocket model without its chat template."""
    folder = tmp_path / "base"
    shutil.copytree(resolve_model("pocket").path, folder)
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings.pop("chat_template", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "manifest.json").unlink(missing_ok=True)
    return folder


def test_a_base_model_says_what_it_does(chat: Callable[..., Any], base_model: Path) -> None:
    ran = chat("Once upon a time", "there was", args=(base_model, *JSON))
    assert len(answers(ran)) == 2
    assert "it has no chat template" in ran.err
    assert "without memory of those before" in ran.err
    ran = chat("Hello", "there", args=(base_model, *JSON, "--chat-template", "plain"))
    assert len(answers(ran)) == 2
    assert "no chat template" not in ran.err


@pytest.mark.parametrize(
    ("lines", "args", "message"),
    [
        (("/rset",), (), "there is no command '/rset'"),
        (("Hi", "/seed x"), (), "/seed x: this cannot be"),
        (("/seed -1",), (), "/seed -1: this cannot be"),
        (("/top-p 0",), (), "/top-p 0"),
        (("/retry",), (), "there is no message to answer again"),
        (("/save",), (), "/save needs the name of a file"),
        (("/save x.jsonl",), (), "there is nothing to save"),
        (("word " * 400,), (), "the context of pocket 256"),
        ((), ("./nowhere",), "there is no model folder './nowhere'"),
        ((), ("--chat-template", "plian"), "did you mean 'plain'"),
    ],
)
def test_wrong_lines(chat: Callable[..., Any], lines: tuple[str, ...], args: tuple[str, ...], message: str) -> None:
    ran = chat(*lines, args=(*args, "--max-tokens", 2))
    assert ran.code == 2
    assert message in ran.err
    assert "Traceback" not in ran.err
    assert not lines or "of stdin" in ran.err


def test_no_lines_and_empty_lines_are_nothing(chat: Callable[..., Any]) -> None:
    ran = chat("", "   ", args=JSON)
    assert (ran.code, ran.out) == (0, "")
    assert answers(chat("Hi", "/quit", "Never said", args=JSON))[1:] == []


def test_the_model_is_the_one_named(talker: ChatModel) -> None:
    assert talker.policy.source == ModelConfig().path


@pytest.mark.slow
def test_in_a_terminal_two_answers_stand_side_by_side(tmp_path: Path) -> None:
    main, other = pty.openpty()
    command = [sys.executable, "-m", "rlhf_core.cli.main", "chat", "pocket", "--compare", "pocket", "--max-tokens", "8"]
    env = {**os.environ, "COLUMNS": "100", "TERM": "xterm"}
    process = subprocess.Popen(command, stdin=other, stdout=other, stderr=other, cwd=tmp_path, env=env)
    os.close(other)
    os.write(main, b"What is 2 + 3?\n/wrong\n/quit\n")
    seen = b""
    while select.select([main], [], [], 60)[0]:
        try:
            seen += os.read(main, 65536)
        except OSError:  # the other side is closed
            break
    assert process.wait(60) == 0, seen.decode()
    text = seen.decode()
    assert any(line.count("pocket") == 2 for line in text.splitlines()), text
    assert any(line.count("The") == 2 for line in text.splitlines()), text
    assert "there is no command '/wrong'" in text, "what is wrong with a line does not end the conversation"
