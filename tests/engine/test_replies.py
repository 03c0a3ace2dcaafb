"""Tokens of prompt and reply are the chat template's own of the whole conversation, for every template."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from rlhf_core.models.prompt_format import Formatter, end_ids, stop_at_turn_ends
from rlhf_core.types.errors import ModelError
from rlhf_core.types.rollouts import Message

ASKED: Message = {"role": "user", "content": "the cat?"}
MARKS = ["<s>", "</s>", "<turn>", "</turn>", "[INST]", "[/INST]", "<|user|>", "<|answer|>", "<|call|>"]
GEMMA = (
    "{{ bos_token }}{% for m in messages %}<turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{{ m.content | trim }}</turn>\n{% endfor %}{% if add_generation_prompt %}<turn>model\n{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% else %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
)
R1 = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}<|user|>{{ m.content }}{% else %}<|answer|>"
    "{{ m.content.split('</think>')[-1] }}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|answer|><think>\n{% endif %}"
)
QWEN3 = (
    "{% for m in messages %}<turn>{{ m.role }}\n{% if m.role == 'assistant' and loop.last %}<think>\n"
    "{{ m.content.split('</think>')[0].split('<think>')[-1].strip() if '</think>' in m.content }}\n</think>\n\n"
    "{% endif %}{{ m.content.split('</think>')[-1].lstrip('\n') }}</turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<turn>assistant\n{% endif %}"
)
LLAMA2 = (
    "{% for m in messages %}{% if m.role == 'user' %}<<ASK>> {{ m.content }} <</ASK>>"
    "{% else %} {{ m.content }} {{ eos_token }}{% endif %}{% endfor %}"
)
CHANNEL = (
    "{% for m in messages %}<turn>{{ m.role }}{% if m.role == 'assistant' %}<|answer|>final{% endif %}<|user|>"
    "{{ m.content }}</turn>{% endfor %}{% if add_generation_prompt %}<turn>assistant{% endif %}"
)
ASKS = "{% if add_generation_prompt %}assistant: {% endif %}"
ENDLESS = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}" + ASKS
WORDS = "{% for m in messages %}{{ m.role }}: {{ m.content }} ### End\n{% endfor %}" + ASKS
PLAIN_EOS = "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}\n{% endfor %}" + ASKS
TEMPLATES = {
    "gemma": (GEMMA, "</turn>"),
    "mistral": (MISTRAL, "</s>"),
    "r1": (R1, "</s>"),
    "qwen3": (QWEN3, "</turn>"),
    "llama2": (LLAMA2, "</s>"),
    "channel": (CHANNEL, "</turn>"),
    "endless": (ENDLESS, ""),
    "words": (WORDS, ""),
    "plain_eos": (PLAIN_EOS, "</s>"),
}
CORPUS = ["the cat sat on the mat.\n\nuser: assistant: [INST] [/INST] because", "5. </think>\n\n<think>\nyes"] * 20


def byte_level() -> Any:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return trained(backend, pre_tokenizers.ByteLevel.alphabet())


def sentencepiece() -> Any:
    """A blank before each text, and blanks as part of words, as Llama 2 and Mistral have it."""
    backend = Tokenizer(models.BPE(byte_fallback=False, unk_token="<unk>"))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Strip(" ", 1, 0)])
    return trained(backend, [chr(n) for n in range(32, 127)] + ["\n", "▁"])


def trained(backend: Tokenizer, alphabet: list[str]) -> Any:
    trainer = trainers.BpeTrainer(
        vocab_size=420, initial_alphabet=alphabet, special_tokens=["<unk>"], show_progress=False
    )
    backend.train_from_iterator(CORPUS, trainer)
    backend.add_special_tokens(MARKS)
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


TOKENIZERS = {"byte_level": byte_level(), "sentencepiece": sentencepiece()}


def formatter_of(kind: str, template: str) -> Formatter:
    tokenizer = copy.deepcopy(TOKENIZERS[kind])
    tokenizer.chat_template = TEMPLATES[template][0]
    return Formatter(tokenizer, "chat")


FORMATTERS = {(kind, template): formatter_of(kind, template) for kind in TOKENIZERS for template in TEMPLATES}
every_form = pytest.mark.parametrize(("kind", "template"), list(FORMATTERS))
WRITTEN = st.text(st.sampled_from("abt .\n5<>{}/"), min_size=1, max_size=12).map(lambda t: f"a{t}")
ANSWERS = st.one_of(
    WRITTEN,
    st.sampled_from(
        ["5.", "because", "<think>\nbecause", "<think>\nwhy\n</think>\n\nbecause", "the </s> mat", "\n\na"]
    ),
)


@every_form
@settings(max_examples=40, deadline=None)
@given(asked=WRITTEN, answer=ANSWERS)
def test_prompt_and_reply_are_a_prefix_of_the_whole(kind: str, template: str, asked: str, answer: str) -> None:
    formatter = FORMATTERS[kind, template]
    tokenizer, prompt = formatter.tokenizer, [{"role": "user", "content": asked}]
    turns: list[Message] = [*prompt, {"role": "assistant", "content": answer}]
    try:
        reply = formatter.encode_reply(prompt, answer)
    except ModelError:
        reply = None
    if reply is None:
        whole = tokenizer.apply_chat_template(turns, tokenize=False)
        opening = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
        assert not whole.startswith(opening) or "</think>" in answer
        return
    end = TEMPLATES[template][1]
    ids = (*formatter.encode(prompt), *reply)
    assert tokenizer.decode(reply[-1:]) == (end or tokenizer.eos_token)
    ids = ids if end else ids[:-1]
    if "</s>" in answer:  # a name in a text, which the tokenizer alone would take for the token
        whole = formatter.encode_rest(formatter.render(turns, add_generation_prompt=False))
    else:
        whole = tuple(tokenizer.apply_chat_template(turns, tokenize=True, return_dict=False))
    if whole[: len(ids)] != ids:  # a token of the whole reaches over the place where the policy goes on
        assert whole[: len(formatter.encode(prompt))] != formatter.encode(prompt)
        assert tokenizer.decode(whole).startswith(tokenizer.decode(ids))
    judged = (*formatter.encode(prompt), *formatter.encode_answer(prompt, answer))
    assert judged[: len(ids)] == ids, "a reward model sees the ending that the policy learns"
    assert tokenizer.decode(judged) == tokenizer.decode(whole) + ("" if end else tokenizer.eos_token)


def test_the_cases_of_the_published_templates() -> None:
    def learned(template: str, answer: str) -> str:
        formatter = FORMATTERS["byte_level", template]
        return formatter.tokenizer.decode(formatter.encode_reply([ASKED], answer))

    assert learned("gemma", "5.") == "5.</turn>"
    assert learned("mistral", "The") == " The</s>"
    assert learned("r1", "<think>\nbecause") == "because</s>"
    assert learned("qwen3", "5.") == "<think>\n\n</think>\n\n5.</turn>"
    assert learned("channel", "5.") == "<|answer|>final<|user|>5.</turn>"


@pytest.mark.parametrize("answer", ["because", "<think>\nwhy\n</think>because"])
def test_an_answer_that_does_not_follow_its_prompt_is_refused_with_the_difference(answer: str) -> None:
    formatter = FORMATTERS["byte_level", "r1"]
    with pytest.raises(ModelError, match="cannot render a turn") as caught:
        formatter.encode_reply([ASKED], answer)
    assert "goes on with '<think>\\n'" in str(caught.value)
    assert "'because</s>'" in str(caught.value)
    assert "chat_template" in caught.value.fix
    text = formatter.encode_answer([ASKED], answer)
    assert formatter.tokenizer.decode(text) == f"{answer}</s>", "a reward model reads it as it is"


FILTERS = {
    "upper": "m.content | upper",
    "title": "m.content | title",
    "without a dash": "m.content | replace('-', ' ')",
    "without its end": "m.content[:-1]",
    "reversed": "m.content | reverse",
    "nothing": "''",
    "the end by the text": "m.content ~ ('</s>' if m.content.endswith('.') else '')",
}


@pytest.mark.parametrize("kind", list(TOKENIZERS))
@pytest.mark.parametrize("name", list(FILTERS))
@settings(max_examples=25, deadline=None)
@given(answer=WRITTEN | st.sampled_from(["5.", "5", "12", "A", "AA-1.", "...", "a </s> b", "a</turn>"]))
def test_a_template_that_changes_answers_is_refused_or_its_own_end_is_learned(
    kind: str, name: str, answer: str
) -> None:
    tokenizer = copy.deepcopy(TOKENIZERS[kind])
    tokenizer.chat_template = GEMMA.replace("m.content | trim", FILTERS[name])
    formatter = Formatter(tokenizer, "chat")
    try:
        reply = formatter.encode_reply([ASKED], answer)
    except ModelError:
        return
    ids = [*map(tokenizer.convert_tokens_to_ids, ("</turn>", "</s>", "<turn>"))]
    assert [token for token in reply if token in ids] == [reply[-1]], "one end, at the end"
    assert tokenizer.decode(reply[-1:]) == "</turn>" or name == "the end by the text"


@pytest.mark.parametrize("name", [n for n in FILTERS if n != "the end by the text"])
def test_a_template_that_changes_answers_is_refused_for_those_it_leaves_alone(name: str) -> None:
    tokenizer = copy.deepcopy(TOKENIZERS["byte_level"])
    tokenizer.chat_template = GEMMA.replace("m.content | trim", FILTERS[name])
    with pytest.raises(ModelError, match="changes what an answer says"):
        Formatter(tokenizer, "chat").encode_reply([ASKED], "5.")


def test_a_template_that_ends_no_turn_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    formatter = formatter_of("byte_level", "endless")
    for _ in range(2):
        formatter.encode_reply([ASKED], "5.")
    assert caplog.text.count("EOS is put after each answer") == 1


@pytest.mark.parametrize(("template", "added"), [("gemma", True), ("mistral", False), ("words", False)])
def test_the_end_of_a_turn_ends_completions(template: str, added: bool, model: Any) -> None:
    policy = copy.deepcopy(model)
    policy.generation_config.eos_token_id = None
    formatter = formatter_of("byte_level", template)
    before = end_ids(policy, formatter.tokenizer)
    stop_at_turn_ends(policy, formatter)
    end = formatter.tokenizer.convert_tokens_to_ids("</turn>")
    assert end_ids(policy, formatter.tokenizer) == ((*before, end) if added else before)
