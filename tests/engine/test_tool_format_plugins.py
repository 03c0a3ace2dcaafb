"""A third party's tool format: found by its entry point, chosen by name or by the template, refused when broken."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlhf_core.cli.main import main
from rlhf_core.data.tools import check_format, read_tools
from rlhf_core.models.config import ModelConfig
from rlhf_core.models.load import load_tokenizer
from rlhf_core.models.prompt_format import Formatter
from rlhf_core.types.errors import ConfigError, PluginError
from rlhf_plugin_episodes.agent_config import MultiTurnConfig
from rlhf_plugin_episodes.tool_calls import choose_format
from rlhf_plugin_pocket import weights_path
from rlhf_testing import make_context

WEIGHTS = weights_path()
MODULE = '''
import json
from rlhf_plugin_episodes.tool_formats import ParsedToolCalls, RawToolCall

class Arrow:
    """-> name {"a": 1}"""
    def take(self, text):
        content, calls = [], []
        for line in text.split("\\n"):
            if not line.startswith("-> "):
                content.append(line)
                continue
            name, _, given = line[3:].partition(" ")
            calls.append(RawToolCall(line, name, given))
        return ParsedToolCalls("\\n".join(content).strip(), calls)

class Always:
    def take(self, text): return ParsedToolCalls("", [RawToolCall(text, "add", {"a": 3})])

class Raises:
    def take(self, text): raise KeyError("oh")

class Wrong:
    def take(self, text): return [text]

class Bare: pass
'''
TEMPLATE = (
    "{% for t in tools or [] %}{{ t.function | tojson }}{{ '\\n' }}{% endfor %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ '\\n-> ' + c.function.name + ' ' }}{{ c.function.arguments | tojson }}"
    "{% endfor %}{{ eos_token if m.role == 'assistant' }}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
TOOLS = read_tools([{"name": "add", "parameters": {"type": "object", "required": ["a"]}}], "test")


@pytest.fixture
def arrows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install ``arrows`` 1.0 with one good format and three broken ones; a tokenizer's template writes the good one."""
    (tmp_path / "arrow_format.py").write_text(MODULE)
    info = tmp_path / "arrows-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: arrows\nVersion: 1.0\n")
    names = {
        "arrow": "Arrow",
        "always": "Always",
        "a_raises": "Raises",
        "wrong": "Wrong",
        "bare": "Bare",
        "gone": "Gone",
    }
    lines = "".join(f"{name} = arrow_format:{cls}\n" for name, cls in names.items())
    (info / "entry_points.txt").write_text(f"[rlhf.tool_format]\n{lines}")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "arrow.jinja").write_text(TEMPLATE)
    return tmp_path


def tokenizer_of(folder: Path) -> Any:
    return load_tokenizer(ModelConfig(path="pocket", chat_template=str(folder / "arrow.jinja")))


def test_a_template_that_writes_calls_in_a_new_form_is_read_by_the_distribution_that_knows_it(
    arrows: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "rlhf.models"):
        formatter = Formatter(tokenizer_of(arrows), "auto")
        asked = [{"role": "user", "content": "2 + 2?"}]
        called = {"id": "call00000", "type": "function", "function": {"name": "add", "arguments": {"a": 2}}}
        ids = formatter.encode_reply(asked, "", {"role": "assistant", "content": "So.", "tool_calls": [called]}, TOOLS)
        turn = formatter.parse(ids, TOOLS)
    assert type(choose_format(formatter.tokenizer)).__name__ == "Arrow"
    assert (turn.content, [(c.name, dict(c.arguments), c.error) for c in turn.calls]) == (
        "So.",
        [("add", {"a": 2}, "")],
    )
    assert "'a_raises' is left out" in caplog.text  # broken, and nobody asked for it


def test_a_format_is_chosen_by_name_whatever_the_template_writes(arrows: Path) -> None:
    config = ModelConfig(path="pocket", chat_template="hermes", tool_format="arrow")
    formatter = Formatter(load_tokenizer(config), config.prompt_format, config.tool_format)
    ids = formatter.tokenizer.encode('-> add {"a": 3}', add_special_tokens=False)
    assert [dict(c.arguments) for c in formatter.parse(ids, TOOLS).calls] == [{"a": 3}]
    assert choose_format(formatter.tokenizer, "llama3").__class__.__name__ == "Llama3"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("a_raises", "KeyError: 'oh'"),
        ("wrong", "returned list, expected rlhf_plugin_episodes.tool_formats.ParsedToolCalls"),
        ("bare", "no method take"),
        ("gone", "AttributeError"),
    ],
)
def test_a_broken_format_that_was_chosen_is_refused_before_any_work(arrows: Path, name: str, says: str) -> None:
    config = SimpleNamespace(model=ModelConfig(tool_format=name))
    with pytest.raises(PluginError, match=says):
        MultiTurnConfig().preflight(make_context(config=config))


def test_an_unknown_format_is_refused_with_the_nearest_name(arrows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="there is no tool format 'hermez'"):
        choose_format(None, "hermez")
    with pytest.raises(SystemExit) as done:
        main(["train", "--algo", "grpo", "--set", "model.tool_format=arow", "--dry-run"])
    assert done.value.code == 2
    assert "did you mean 'arrow'" in capsys.readouterr().err
    with pytest.raises(SystemExit) as done:
        main(["generate", "--prompt", "x", "--tool-format", "arow"])
    assert done.value.code == 2
    assert "did you mean 'arrow'" in capsys.readouterr().err


def test_generate_reads_calls_in_the_format_that_was_asked_for(
    arrows: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"prompt": "2 + 2?", "tools": [dict(tool) for tool in TOOLS]}
    (arrows / "rows.jsonl").write_text(json.dumps(row) + "\n")
    shutil.copytree(WEIGHTS, arrows / "model")
    tokenizer_of(arrows).save_pretrained(arrows / "model")
    words = ["generate", str(arrows / "rows.jsonl"), "--model", str(arrows / "model"), "--max-tokens", "4"]
    for chosen, calls in ((["--tool-format", "always"], 1), ([], 0)):
        with pytest.raises(SystemExit) as done:
            main([*words, *chosen])
        assert done.value.code == 0
        assert capsys.readouterr().out.count('call add {"a": 3}') == calls


def test_without_the_plugin_that_reads_calls_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    formatter = Formatter(load_tokenizer(ModelConfig(path="pocket", chat_template="hermes")), "auto")
    monkeypatch.setenv("RLHF_DISABLE_PLUGINS", "rlhf-plugin-episodes")
    with pytest.raises(ConfigError, match="no plugin here reads tool calls") as caught:
        formatter.parse([1], TOOLS)
    assert "install rlhf-plugin-episodes, or enable it" in str(caught.value)
    with pytest.raises(ConfigError, match="there is no tool format 'hermes'"):
        check_format("hermes")
