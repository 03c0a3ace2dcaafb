"""Variables of a chat template and the beginning of answers: in every prompt, and saved with the model once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.cli import context_of, open_registry
from rlhf_core.data import DatasetError, Datasets, read_completions
from rlhf_core.models import Formatter, ModelConfig
from rlhf_core.models.chat_templates import set_options
from rlhf_core.models.load import load_tokenizer
from rlhf_core.types.errors import ModelError

TEMPLATE = """{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}
{% endfor %}
{%- if add_generation_prompt %}assistant:
{%- if enable_thinking is defined and not enable_thinking %} <no>{% endif %}{% endif %}
"""
ASKED = [{"role": "user", "content": "2 + 3?"}]


def prompt(tokenizer: Any) -> str:
    return tokenizer.decode(Formatter(tokenizer, "chat").encode(ASKED))


def load(**settings: Any) -> Any:
    return load_tokenizer(ModelConfig(path="pocket", **settings))


def test_the_prompt_has_them_and_a_saved_model_has_the_latest_once() -> None:
    plain = load(chat_template=TEMPLATE)
    assert prompt(plain).endswith("assistant:")
    chosen = load(chat_template=TEMPLATE, chat_template_kwargs={"enable_thinking": False}, assistant_prefix=" So")
    assert prompt(chosen).endswith("assistant: <no> So")
    assert "So" not in chosen.apply_chat_template([*ASKED, {"role": "assistant", "content": "5"}], tokenize=False)
    set_options(chosen, {"enable_thinking": True}, " Well")
    assert prompt(chosen).endswith("assistant: Well")
    set_options(chosen, {}, " Then")
    assert prompt(chosen).endswith("assistant: Then")


@pytest.mark.parametrize("first", ["50% ", 'Say "%}" {{ x }} \\ ', "\N{GRINNING FACE}\n\tOh"])
def test_whatever_they_hold_is_written_as_it_is_and_replaced_later(first: str) -> None:
    template = TEMPLATE.replace("{%- if enable_thinking", "{{- name }}{%- if enable_thinking")
    chosen = load(chat_template=template, chat_template_kwargs={"name": first}, assistant_prefix=first)
    shown = chosen.apply_chat_template(ASKED, tokenize=False, add_generation_prompt=True)
    assert shown.endswith(f"assistant:{first}{first}")
    set_options(chosen, {"name": "60% "}, "70% ")
    shown = chosen.apply_chat_template(ASKED, tokenize=False, add_generation_prompt=True)
    assert shown.endswith("assistant:60% 70% ")
    assert first not in chosen.chat_template


@pytest.mark.parametrize("said", ["5", "Well: 5"])
def test_demonstrations_and_later_turns_go_on_after_the_prefix(said: str) -> None:
    formatter = Formatter(load(assistant_prefix="Well: "), "chat")
    read = formatter.encode(ASKED)
    reply = formatter.encode_reply(ASKED, said)
    shown = formatter.tokenizer.decode((*read, *reply), skip_special_tokens=False)
    assert shown.count("Well: ") == 1
    assert shown.endswith("Well: 5" + formatter.tokenizer.decode(formatter.closing[:1]))
    turns = [*ASKED, {"role": "assistant", "content": "5"}, {"role": "user", "content": "2 + 2?"}]
    bridge = formatter.bridge((*read, *reply), turns)
    assert not bridge.new_segment
    assert formatter.tokenizer.decode(bridge.ids).endswith("Well: ")
    turns[1]["content"] = "Well: 5"
    assert not formatter.bridge((*read, *formatter.encode_text("Well: 5")), turns).new_segment


def test_a_header_of_the_templates_own_is_not_taken_for_a_prefix() -> None:
    header = '{% if add_generation_prompt %}{{ "assistant:" }}{% endif %}'
    chosen = load(chat_template=TEMPLATE.partition("{%- if add")[0] + header, assistant_prefix=" So")
    assert prompt(chosen).endswith("assistant: So")


def test_what_has_no_effect_is_refused() -> None:
    with pytest.raises(ModelError, match="does not use enable_thinking"):
        load(chat_template_kwargs={"enable_thinking": False})
    with pytest.raises(ValueError, match=r"assistant_prefix is given, but model\.prompt_format is raw"):
        load(assistant_prefix="So", prompt_format="raw")


def rows_of(path: Path, *rows: dict[str, Any]) -> Datasets:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return context_of(open_registry(), dataset={"name": "jsonl", "path": str(path)}).datasets


def test_a_row_has_variables_of_its_own_before_those_of_the_run(tmp_path: Path) -> None:
    rows = [
        {"prompt": "1 + 1?"},
        *({"prompt": "2 + 3?", "chat_template_kwargs": {"enable_thinking": x}} for x in (0, 1)),
    ]
    plain, no_thought, thought = rows_of(tmp_path / "rows.jsonl", *rows).prompts("train")
    for default in (False, True):
        formatter = Formatter(load(chat_template=TEMPLATE, chat_template_kwargs={"enable_thinking": default}), "chat")
        shown = [formatter.tokenizer.decode(formatter.encode_prompt(p)) for p in (plain, no_thought, thought)]
        assert [text.endswith(" <no>") for text in shown] == [not default, True, False]
        assert "enable_thinking" not in "".join(shown)


def test_pairs_demonstrations_and_completions_have_them_too(tmp_path: Path) -> None:
    shared = {"chat_template_kwargs": {"enable_thinking": False, "size": None}}
    chat = [*ASKED, {"role": "assistant", "content": "5"}]
    row = {"chosen": chat, "rejected": [*ASKED, {"role": "assistant", "content": "6"}], **shared}
    formatter = Formatter(load(chat_template=TEMPLATE), "chat")
    (pair,) = rows_of(tmp_path / "pairs.jsonl", row).pairs("train")
    (demonstration,) = rows_of(tmp_path / "chats.jsonl", {"messages": chat, **shared}).demonstrations("train")
    rows = [{"messages": chat, "id": 1, **shared}, {"prompt": "2 + 3?", "completion": "5", "id": 2, **shared}]
    (tmp_path / "scored.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    scored = [sample.prompt.messages for sample in read_completions(str(tmp_path / "scored.jsonl")).samples]
    (tmp_path / "unasked.jsonl").write_text(json.dumps({"messages": chat[-1:], **shared}))
    assert read_completions(str(tmp_path / "unasked.jsonl")).samples[0].prompt.messages == ()
    for prompt in (pair.prompt, demonstration.prompt, *scored):
        assert formatter.tokenizer.decode(formatter.encode(prompt)).endswith(" <no>")


def test_variables_that_no_template_takes_are_an_error_and_unused_ones_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for n, wrong in enumerate(("", [], False, "false", ["enable_thinking"], {"enable_thinking": [1]})):
        with pytest.raises(DatasetError, match="chat_template_kwargs are not texts, numbers, true or false"):
            rows_of(tmp_path / f"wrong{n}.jsonl", {"prompt": "x", "chat_template_kwargs": wrong}).prompts("train")
    (prompt,) = rows_of(tmp_path / "rows.jsonl", {"prompt": "x", "chat_template_kwargs": {"depth": 2}}).prompts("train")
    for tokenizer, form in ((load(), "chat"), (load(), "raw")):
        caplog.clear()
        formatter = Formatter(tokenizer, form)
        formatter.encode_prompt(prompt)
        formatter.encode_prompt(prompt)
        assert sum("rows give 'depth'" in message for message in caplog.messages) == 1
