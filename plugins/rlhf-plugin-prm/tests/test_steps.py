"""Where steps begin and end, and which token ends them."""

from __future__ import annotations

import pytest

from rlhf_core.models import ModelConfig, load_tokenizer
from rlhf_plugin_prm.steps import JOINS, joined, split_steps, token_positions

TEXTS = {
    "newline": ("  2 + 3 = 5\n\nso 5.5 \n", ["2 + 3 = 5", "so 5.5"]),
    "blank_line": ("First:\n- 2\n \n\nThen\nthis.", ["First:\n- 2", "Then\nthis."]),
    "step_n": (
        "Let us see.\nStep 1: add.\n2 + 3\n**Step 2** done",
        ["Let us see.", "Step 1: add.\n2 + 3", "**Step 2** done"],
    ),
    "sentence": (
        'He said "5." It costs $2.50 each! Right?\nYes',
        ['He said "5."', "It costs $2.50 each!", "Right?", "Yes"],
    ),
}


@pytest.mark.parametrize("how", list(TEXTS))
def test_steps_of_a_text(how: str) -> None:
    text, expected = TEXTS[how]
    assert [text[s.start : s.end] for s in split_steps(text, how)] == expected
    assert split_steps(" \n\n ", how) == split_steps("", how) == []


@pytest.mark.parametrize("how", list(JOINS))
def test_given_steps_keep_their_places_whatever_they_contain(how: str) -> None:
    steps = ["one\n\ntwo.  Three", " padded ", "last"]
    text, placed = joined(steps, how)
    assert [text[s.start : s.end] for s in placed] == [s.strip() for s in steps]


def test_the_token_with_the_last_character_of_each_step() -> None:
    tokenizer = load_tokenizer(ModelConfig())
    text = "Ünïcode is 12.\n\n💥 7 + 5 = 12\nThe answer is 12."
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    steps = split_steps(text, "newline")
    positions = token_positions(steps, encoded["offset_mapping"])
    prefixes = [tokenizer.decode(encoded["input_ids"][: p + 1]) for p in positions]
    assert prefixes == ["Ünïcode is 12.", "Ünïcode is 12.\n\n💥 7 + 5 = 12", text]
    with pytest.raises(ValueError, match="no token reaches character"):
        token_positions(steps, encoded["offset_mapping"][:-1])


def test_a_tokenizer_that_joins_a_step_with_the_line_break_after_it() -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.WordLevel({"a": 0, ".\n": 1, "b": 2, ".": 3}, unk_token="a"))
    inner.pre_tokenizer = pre_tokenizers.Split(".\n", "isolated")
    encoded = PreTrainedTokenizerFast(tokenizer_object=inner)("a.\nb", return_offsets_mapping=True)
    assert token_positions(split_steps("a.\nb", "newline"), encoded["offset_mapping"]) == [1, 2]
