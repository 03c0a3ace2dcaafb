"""Tokens of pocket-voice: style words, phones, marks and codes, one string each, separated by blanks in text."""

from __future__ import annotations

from typing import Any

from rlhf_plugin_tts.pocket_voice.codec import EXCITATIONS
from rlhf_plugin_tts.pocket_voice.frontend import COMMA, FULL_STOP, PHONES, QUESTION, STYLES, WORD_END

PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"


def vocabulary(spectrum_codes: int) -> dict[str, int]:
    """Token string -> id."""
    codes = [*(f"e{i}" for i in range(EXCITATIONS)), *(f"c{i}" for i in range(spectrum_codes))]
    names = [PAD, EOS, UNKNOWN, *STYLES, "|", ">", WORD_END, COMMA, FULL_STOP, QUESTION, *PHONES, *codes]
    assert len(set(names)) == len(names)
    return {name: i for i, name in enumerate(names)}


def make_tokenizer(spectrum_codes: int) -> Any:
    """A transformers tokenizer of whole tokens; ``decode`` writes them with blanks, ``encode`` reads that again."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel(vocabulary(spectrum_codes), UNKNOWN))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNKNOWN,
        clean_up_tokenization_spaces=False,
        model_max_length=1024,
    )
