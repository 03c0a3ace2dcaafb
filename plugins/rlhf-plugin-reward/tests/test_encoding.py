"""Conversations to ids: how they end, what is cut and counted, and which pairs of a mixture are taken."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from rlhf_core.data import PreferencePair
from rlhf_core.models import ModelConfig, ModelError, load_policy, load_tokenizer
from rlhf_core.models.save import save_model
from rlhf_plugin_reward.encoding import Encoder
from rlhf_plugin_reward.pairs import encode_pairs, first_of_mixture

ASKED = ({"role": "user", "content": "What is 2 + 3?"},)
GEMMA = (
    "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{{ m.content | trim }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture
def tokenizer() -> Any:
    return load_policy(ModelConfig()).tokenizer


def with_template(tokenizer: PreTrainedTokenizerBase, template: str, *tokens: str) -> PreTrainedTokenizerBase:
    tokenizer.add_special_tokens({"additional_special_tokens": list(tokens)})
    tokenizer.chat_template = template
    return tokenizer


@pytest.mark.parametrize(
    ("template", "tokens"),
    [(None, ()), (GEMMA, ("<start_of_turn>", "<end_of_turn>")), (CHATML, ("<|im_start|>", "<|im_end|>"))],
)
def test_a_conversation_is_what_the_chat_template_makes_of_it(
    tokenizer: Any, template: str | None, tokens: tuple[str, ...]
) -> None:
    if template:
        with_template(tokenizer, template, *tokens)
    whole = [*ASKED, {"role": "assistant", "content": "It is 5."}]
    expected = tokenizer.apply_chat_template(whole, tokenize=True, return_dict=False)
    assert Encoder(tokenizer, 999).encode(ASKED, "It is 5.") == tuple(expected)


def test_dialogue_on_a_model_without_a_template_needs_one_and_keeps_who_says_what(tmp_path: Path) -> None:
    policy = load_policy(ModelConfig())
    tokenizer = policy.tokenizer
    tokenizer.chat_template = None
    save_model(policy.model, tokenizer, tmp_path)
    turns = [*ASKED, {"role": "assistant", "content": "It is 5."}, {"role": "user", "content": "Yes"}]
    with pytest.raises(ModelError, match=r"--set model\.chat_template=plain"):
        Encoder(tokenizer, 999).encode(turns, "Then stop.")
    plain = load_tokenizer(ModelConfig(path=str(tmp_path), chat_template="plain"))
    ids = Encoder(plain, 999).encode(turns, "Then stop.")
    assert plain.decode(ids, skip_special_tokens=True) == (
        "User:\nWhat is 2 + 3?\n\nAssistant:\nIt is 5.\n\nUser:\nYes\n\nAssistant:\nThen stop."
    )


def test_plain_text_ends_with_the_end_token_if_there_is_one(tokenizer: Any) -> None:
    tokenizer.chat_template = None
    closed = Encoder(tokenizer, 999).encode(ASKED, "It is 5.")
    assert closed[-1] == tokenizer.eos_token_id
    tokenizer.eos_token = None
    assert Encoder(tokenizer, 999).encode(ASKED, "It is 5.") == closed[:-1]


def test_a_template_that_writes_nothing_after_an_answer_ends_with_the_end_token(tokenizer: Any) -> None:
    written = "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}"
    tokenizer.chat_template = written + "{% if add_generation_prompt %}assistant: {% endif %}"
    assert Encoder(tokenizer, 999).encode(ASKED, "It is 5.")[-1] == tokenizer.eos_token_id


def test_cut_pairs_are_counted(tokenizer: Any) -> None:
    long = "What? " * 50
    rows = [
        PreferencePair("fits", ASKED, "5", "6"),
        PreferencePair("prompt", ({"role": "user", "content": long},), "5", "6"),
        PreferencePair("answer", ASKED, "5", "I guess. " * 30),
    ]
    counts: Counter[str] = Counter()
    items = encode_pairs(rows, Encoder(tokenizer, 32), counts)
    assert counts == {"pairs_prompt_cut": 1, "pairs_answer_cut": 1}
    assert [(len(i.chosen_ids) == 32, len(i.rejected_ids) == 32) for i in items] == [
        (False, False),
        (True, True),
        (False, True),
    ]


def test_a_cut_mixture_keeps_its_weights() -> None:
    rows = [
        PreferencePair(f"{s}{i}", ASKED, "5", "6", source=s)
        for s, n in (("big", 100), ("small", 3), ("heavy", 100))
        for i in range(n)
    ]
    weights = {"big": 1.0, "small": 1.0, "heavy": 2.0}
    first_pairs = first_of_mixture(rows, weights, 40)
    assert Counter(p.source for p in first_pairs) == {"big": 12, "small": 3, "heavy": 25}
    assert [p.id for p in first_pairs if p.source == "big"] == [f"big{i}" for i in range(12)]
    assert first_of_mixture(rows, weights, 1000) == rows
    assert first_of_mixture(rows[:100], weights, 7) == rows[:7]


def write_pairs(file: Path) -> Path:
    """60 pairs, each over the limit of 24 tokens."""
    rows = [
        {"id": str(i), "prompt": f"What is {i} + {i}?", "chosen": f"It is {2 * i}.", "rejected": "I guess. " * 9}
        for i in range(60)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def train(command: Callable[..., tuple[int, str]], run: Path, *options: object, **settings: object) -> dict[str, Any]:
    """Train in ``run``; its summary. ``trainer__steps=1`` is ``--set trainer.steps=1``."""
    words = [word for k, v in settings.items() for word in ("--set", f"{k.replace('__', '.')}={v}")]
    code, err = command("train", *options, "--set", "threads=1", *words, "--run-dir", run)
    assert code == 0, err
    return json.loads((run / "summary.json").read_text())


@pytest.mark.slow
def test_what_was_cut_for_an_ensemble_is_in_the_summary(
    command: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    sources = [{"name": str(write_pairs(tmp_path / f"{name}.jsonl")), "label": name} for name in ("a", "b")]
    reward = {
        "name": "ensemble",
        "members": 2,
        "sharing": "frozen",
        "max_pairs": 20,
        "heldout_pairs": 10,
        "max_length": 24,
        "pairs": {"sources": sources, "heldout_fraction": 0.3},
    }
    config = tmp_path / "run.yaml"
    config.write_text(json.dumps({"reward": reward}))
    small = {"trainer__steps": 1, "trainer__rollout_batch_size": 8, "trainer__eval_samples": 0}
    reports = train(command, tmp_path / "run", "--algo", "grpo", "--config", config, **small)["reports"]
    counted = reports["ensemble_pairs_counted"]
    assert counted["pairs_beyond_max_pairs"] + counted["pairs_beyond_heldout_pairs"] == 120 - 20 - 10
    assert reports["ensemble"]["train_pairs"] == 20
    assert sum(reports["ensemble"]["pairs_cut"].values()) == 30


def test_what_was_cut_for_a_reward_model_is_in_the_summary(
    command: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    pairs = write_pairs(tmp_path / "a.jsonl")
    options = ("--algo", "reward_model", "--dataset", pairs)
    dropped = train(command, tmp_path / "rm", *options, trainer__max_length=24, trainer__max_steps=1)["dropped"]
    assert dropped["pairs_answer_cut"] + dropped.get("pairs_prompt_cut", 0) == 60
