"""``model.chat_template=keep_thinking`` on the templates of thinking models, as TRL ships them (Apache 2.0)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlhf_core.data import Message
from rlhf_core.models import Formatter, ModelConfig, ModelError, load_policy, load_tokenizer
from rlhf_core.models.tool_templates import ANSWERED, PROBE_TOOL, fill, template_message
from rlhf_plugin_episodes.keep_thinking import keep_thinking
from rlhf_plugin_sft.task import all_answers

KEPT = ("qwen3", "qwen3_5_think", "qwen3_6", "glm4moe", "lfm2_2_5", "nemotron_3_nano")
CALL = {"id": "call00000", "type": "function", "function": {"name": PROBE_TOOL["function"]["name"], "arguments": {}}}
TALK: list[Message] = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "2 + 2?"},
    {"role": "assistant", "content": "4", "reasoning": "two and two"},
    {"role": "user", "content": "And 3 + 3?"},
    {"role": "assistant", "content": "", "reasoning": "ask the tool", "tool_calls": [CALL]},
    ANSWERED,
    {"role": "assistant", "content": "6", "reasoning": "it said so"},
    {"role": "user", "content": "4 + 4?"},
    {"role": "assistant", "content": "8", "reasoning": "four and four"},
]


def template(name: str) -> str:
    trl = pytest.importorskip("trl")
    return (Path(trl.__file__).parent / "chat_templates" / f"{name}.jinja").read_text()


def tokenizer_of(name: str) -> Any:
    tokenizer = load_tokenizer(ModelConfig())
    ends = {"glm4moe": ["<|user|>", "<|observation|>"]}.get(name, ["<|im_start|>", "<|im_end|>"])
    tokenizer.add_special_tokens({"additional_special_tokens": ends})
    tokenizer.chat_template = template(name)
    return tokenizer


def save_model(folder: Path, tokenizer: Any) -> None:
    policy = load_policy(ModelConfig())
    policy.model.resize_token_embeddings(len(tokenizer))
    policy.model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def write(tokenizer: Any, turns: list[Message], *, generation: bool = False, tools: bool = True) -> str:
    given = [template_message(turn, tokenizer.chat_template) for turn in turns]
    return fill(tokenizer, given, [PROBE_TOOL] if tools else [], generation=generation)


def test_qwen3_drops_thoughts_and_the_variant_keeps_them() -> None:
    tokenizer = tokenizer_of("qwen3")
    assert "two and two" not in write(tokenizer, TALK)
    keep_thinking(tokenizer)
    talk = [TALK[1], TALK[2], TALK[-2], TALK[-1]]
    assert write(tokenizer, talk, tools=False) == (
        "<|im_start|>user\n2 + 2?<|im_end|>\n"
        "<|im_start|>assistant\n<think>\ntwo and two\n</think>\n\n4<|im_end|>\n"
        "<|im_start|>user\n4 + 4?<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nfour and four\n</think>\n\n8<|im_end|>\n"
    )


@pytest.mark.parametrize("name", KEPT)
def test_every_prompt_goes_on_and_the_last_turn_is_the_originals(name: str) -> None:
    original, variant = tokenizer_of(name), tokenizer_of(name)
    keep_thinking(variant)
    whole = write(variant, TALK)
    for n, turn in enumerate(TALK):
        if turn["role"] == "assistant":
            prompt = write(variant, TALK[:n], generation=True)
            assert whole.startswith(prompt)
            shared = prompt.rpartition(str(TALK[n - 1]["content"]))[2]
            assert write(original, TALK[:n], generation=True).endswith(shared)
            after = write(variant, TALK[: n + 1]).rpartition(str(TALK[n - 1]["content"]))[2]
            assert write(original, TALK[: n + 1]).endswith(after)
    assert all(str(turn["reasoning"]) in whole for turn in TALK if "reasoning" in turn)


@pytest.mark.parametrize("name", ["qwen3", "qwen3_5_think", "qwen3_6"])
def test_all_answers_are_learned_in_one_sequence(name: str) -> None:
    tokenizer = tokenizer_of(name)
    with pytest.raises(ModelError, match=r"cannot (render|put all)"):
        all_answers(Formatter(tokenizer, "chat"), TALK[:-1], "8", TALK[-1], [PROBE_TOOL])
    keep_thinking(tokenizer)
    turns = all_answers(Formatter(tokenizer, "chat"), TALK[:-1], "8", TALK[-1], [PROBE_TOOL])
    learned = tokenizer.decode([i for i, yes in zip(turns.completion, turns.learned) if yes])
    assert learned.count("<|im_end|>") == 4
    assert all(thought in learned for thought in ("two and two", "ask the tool", "it said so", "four and four"))
    assert tokenizer.decode([*turns.prompt, *turns.completion]).strip() == write(tokenizer, TALK).strip()


def test_a_sampled_thought_stays_in_the_context_of_the_next_turn() -> None:
    tokenizer = tokenizer_of("qwen3")
    said = "<think>\ntwo and two\n</think>\n\n4<|im_end|>"
    asked, later = TALK[1:2], [TALK[1], TALK[2], TALK[3]]
    for kept in (False, True):
        if kept:
            keep_thinking(tokenizer)
        formatter = Formatter(tokenizer, "chat")
        read = (*formatter.encode(asked), *tokenizer.encode(said, add_special_tokens=False))
        assert formatter.bridge(read, later).new_segment is not kept


def test_it_is_a_setting_saved_with_the_model_beside_the_other_options(tmp_path: Path) -> None:
    save_model(tmp_path / "model", tokenizer_of("qwen3"))
    config = ModelConfig(
        path=str(tmp_path / "model"),
        chat_template="keep_thinking",
        chat_template_kwargs={"enable_thinking": False},
        assistant_prefix="So ",
    )
    chosen = load_tokenizer(config)
    answers = [{"role": "assistant", "content": "4"}, {"role": "assistant", "content": "8"}]
    talk = [TALK[1], answers[0], TALK[-2]]
    assert write(chosen, talk, generation=True, tools=False).endswith("<think>\n\n</think>\n\nSo ")
    assert write(chosen, [*talk, answers[1]], tools=False).count("<think>\n\n</think>") == 2
    assert Formatter(chosen, "chat").prefix == "So "
    save_model(tmp_path / "saved", chosen)
    again = load_tokenizer(config.model_copy(update={"path": str(tmp_path / "saved")}))
    assert again.chat_template == chosen.chat_template
    thinking = config.model_copy(
        update={"path": str(tmp_path / "saved"), "chat_template_kwargs": {"enable_thinking": True}}
    )
    assert write(load_tokenizer(thinking), TALK[1:2], generation=True, tools=False).endswith(
        "<|im_start|>assistant\nSo "
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("llama3", "never writes the reasoning"),
        ("deepseek_r1_distill", "does not go on"),
        ("", "there is no template"),
    ],
)
def test_a_template_of_which_none_can_be_made_is_refused(text: str, why: str) -> None:
    tokenizer = load_tokenizer(ModelConfig())
    tokenizer.chat_template = before = template(text) if text else None
    with pytest.raises(ModelError, match=f"(?s)keep_thinking cannot be made.*{why}"):
        keep_thinking(tokenizer)
    assert tokenizer.chat_template == before


def test_a_variant_that_changes_the_last_turn_is_refused() -> None:
    tokenizer = tokenizer_of("qwen3")
    counting = "{% if loop.last and messages | length > 2 %}({{ messages[-3].content }}){% endif %}"
    tokenizer.chat_template = tokenizer.chat_template.replace(
        "{{- '<|im_end|>\\n' }}", counting + "{{- '<|im_end|>\\n' }}"
    )
    with pytest.raises(ModelError, match="the variant ends a conversation with"):
        keep_thinking(tokenizer)


def test_words_that_the_variant_itself_uses_are_refused_in_a_message() -> None:
    tokenizer = tokenizer_of("qwen3")
    keep_thinking(tokenizer)
    with pytest.raises(ModelError, match="an-answer-that-was-left-out"):
        Formatter(tokenizer, "chat").encode([{"role": "user", "content": "an-answer-that-was-left-out"}])
