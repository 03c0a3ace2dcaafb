"""Many prompts at once: rendered by one call of the chat template, tokenized where their length is in doubt."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rlhf_core.data import Message, Prompt
from rlhf_core.models import Formatter
from rlhf_core.models.template_writer import TextEncoder
from rlhf_core.models.tool_templates import limited

RENDERED = 50
"""Prompts that are rendered at once: one that has to be rendered alone costs so many their turn."""
KEEP_ASCII = ("NoneType", "NFC", "NFD", "NFKC", "NFKD", "Lowercase")
"""Normalizers of the tokenizers library that make no ASCII text longer."""


def lengths(formatter: Formatter) -> Callable[[Sequence[Prompt], int], list[int]]:
    """What counts the tokens of each prompt, but of one that cannot have more than a number only up to that."""

    def counted(prompts: Sequence[Prompt], enough: int) -> list[int]:
        together = formatter.chat and formatter.modality is None and never_lengthens(formatter.text)
        counts: list[int] = []
        for start in range(0, len(prompts), RENDERED):
            batch, texts = prompts[start : start + RENDERED], list[str]()
            if together and not any(prompt.tools for prompt in batch):
                formatter.check_template()
                texts = render_prompts(formatter, [prompt.messages for prompt in batch])
            for prompt, text in zip(batch, texts or [""] * len(batch)):
                most = len(text) + 1 if text and text.isascii() else enough + 1
                counts.append(most if most <= enough else len(formatter.encode_prompt(prompt)))
        return counts

    return counted


def never_lengthens(encoder: TextEncoder) -> bool:
    """Whether each token, but one at the beginning, stands for a character or more of an ASCII text."""
    tokenizer = encoder.tokenizer
    normalizer = type(getattr(getattr(tokenizer, "backend_tokenizer", 0), "normalizer", 0)).__name__
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    return normalizer in KEEP_ASCII and all(len(token.content) > 1 for token in added)


def render_prompts(formatter: Formatter, prompts: Sequence[Sequence[Message]]) -> list[str]:
    """As `Formatter.render`, without tools and up to the answers, at once; [] if one of them has to be rendered alone:
    it is more than roles and texts, names a special token, or is refused.
    """
    given = [[dict(turn) for turn in prompt] for prompt in prompts]
    texts = [text for prompt in given for turn in prompt for text in turn.values()]
    plain = all(turn.keys() == {"role", "content"} for prompt in given for turn in prompt)
    if not plain or not all(isinstance(text, str) for text in texts) or formatter.text.names_in("\0".join(texts)):
        return []
    try:
        with limited(getattr(formatter.tokenizer, "name_or_path", ""), "one of several"):
            rendered = formatter.tokenizer.apply_chat_template(given, tokenize=False, add_generation_prompt=True)
    except Exception:  # rendered alone it says why
        return []
    for prompt, text in zip(given, rendered):
        if any(turn["role"] != "assistant" and turn["content"].strip() not in text for turn in prompt):
            formatter.render(prompt, add_generation_prompt=True)  # which says once what it leaves out
    return rendered
