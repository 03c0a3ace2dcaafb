"""Text stays text: strings such as ``<|im_end|>`` inside data are encoded letter by letter, never as control tokens.

Tokenizers read the names of their special tokens wherever they stand, so that a message could close its own turn and
speak as another role. Here only a chat template's own marks become special tokens.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Mapping
from functools import cached_property
from typing import Any

log = logging.getLogger("rlhf.models")
_NONCE = secrets.token_hex(6)
"""Nobody who writes data knows it, so no data contains a placeholder."""
_CUT = f"cut{_NONCE}e"
"""Stands where a text is cut in two, so that the name of an added token in it is not read as that token."""


def encode_text(tokenizer: Any, text: str, *, add_special_tokens: bool = False) -> list[int]:
    """Token ids of text from data, tools, environments or judges: names of special tokens in it are plain text.

    Text without such names gets the tokenizer's own ids.

    Args:
        tokenizer: of transformers.
        text: whatever it holds.
        add_special_tokens: as the tokenizer's ``encode`` (BOS, for some).
    """
    return TextEncoder(tokenizer).encode(text, add_special_tokens=add_special_tokens)


class TextEncoder:
    """Encodes text of one tokenizer, and chat templates filled with text.

    Args:
        tokenizer: of transformers.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    @cached_property
    def specials(self) -> dict[str, Any]:
        """String -> special token (id, and whether it takes the blanks beside it)."""
        tokens = {t.content: (i, t.lstrip, t.rstrip) for i, t in self._added.items() if t.special and t.content}
        own = (getattr(self.tokenizer, f"all_special_{what}", ()) for what in ("tokens", "ids"))
        for text, i in zip(*own):
            tokens.setdefault(text, (i, False, False))
        return tokens

    @property
    def _added(self) -> Mapping[int, Any]:
        return getattr(self.tokenizer, "added_tokens_decoder", None) or {}

    @cached_property
    def _pattern(self) -> re.Pattern[str] | None:
        names = sorted(self.specials, key=len, reverse=True)
        return re.compile("|".join(re.escape(n) for n in names)) if names else None

    @cached_property
    def _placeholders(self) -> dict[str, str]:
        return {f"txt{_NONCE}n{n}e": name for n, name in enumerate(self.specials)}

    def names_in(self, text: str) -> list[str]:
        """Names of special tokens that stand in a text."""
        return self._pattern.findall(text) if self._pattern else []

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """See :func:`encode_text`."""
        if not self.names_in(text):
            return list(self.tokenizer.encode(text, add_special_tokens=add_special_tokens))
        self._warn(self.names_in(text)[0])
        ids = list(self.tokenizer.encode(text, add_special_tokens=add_special_tokens, split_special_tokens=True))
        frame = set(self.tokenizer.encode("", add_special_tokens=True)) if add_special_tokens else set[int]()
        unknown = {self.tokenizer.unk_token_id}
        if not {i for i, _, _ in self.specials.values()} & (set(ids) - frame - unknown):
            return ids
        return self._in_halves(text, add_special_tokens)

    def _in_halves(self, text: str, add_special_tokens: bool) -> list[int]:
        """For tokenizers whose vocabulary holds a special token's name as a word: the name is cut in two."""
        frame = list(self.tokenizer.encode("", add_special_tokens=True)) if add_special_tokens else []
        ids: list[int] = frame[:1] if frame[:1] == [self.tokenizer.bos_token_id] else []
        at = 0
        for match in self._pattern.finditer(text) if self._pattern else ():
            middle = (match.start() + match.end() + 1) // 2
            ids += self.tokenizer.encode(text[at:middle], add_special_tokens=False)
            at = middle
        return [*ids, *self.tokenizer.encode(text[at:], add_special_tokens=False)]

    def _warn(self, name: str) -> None:
        if name not in _WARNED:
            _WARNED.add(name)
            log.warning(
                "%r stands in a text and is encoded as text, not as the control token of that name; where a prompt "
                "template means the token, use model.chat_template",
                name,
            )

    def guard(self, text: str, *, added: bool = False) -> str:
        """The text with placeholders for names of special tokens, to be put into a chat template.

        Args:
            text: whatever it holds.
            added: names of added tokens that are not special (``<tool_call>``, ``</think>``) are kept as text, too.
        """
        if added and self._added_pattern is not None:
            text = self._added_pattern.sub(lambda match: _halves(match[0]), text)
        if not self.names_in(text):
            return text
        by_name = {name: mark for mark, name in self._placeholders.items()}
        assert self._pattern is not None
        return self._pattern.sub(lambda match: by_name[match[0]], text)

    @cached_property
    def _added_pattern(self) -> re.Pattern[str] | None:
        added = {t.content for t in self._added.values() if len(t.content) > 1 and t.content.strip()}
        names = sorted(added - set(self.specials), key=len, reverse=True)
        return re.compile("|".join(re.escape(n) for n in names)) if names else None

    def placeholders_in(self, text: str) -> int:
        """How many placeholders stand in a text."""
        return sum(map(text.count, (*self._placeholders, _CUT))) if _NONCE in text else 0

    def encode_filled(self, text: str) -> list[int]:
        """Token ids of a filled chat template: special tokens where it writes their names, text for placeholders."""
        if _NONCE not in text:
            return list(self.tokenizer.encode(text, add_special_tokens=False))
        ids: list[int] = []
        at, strip_left = 0, False
        for match in self._pattern.finditer(text) if self._pattern else ():
            token, lstrip, rstrip = self.specials[match[0]]
            ids += self._run(text[at : match.start()], strip_left, lstrip, first=at == 0)
            ids.append(token)
            at, strip_left = match.end(), rstrip
        return [*ids, *self._run(text[at:], strip_left, False, first=at == 0)]

    def _run(self, text: str, strip_left: bool, strip_right: bool, *, first: bool) -> list[int]:
        """Token ids of what stands between two special tokens, which may take the blanks beside them."""
        text = text.lstrip() if strip_left else text
        first_piece, *pieces = (text.rstrip() if strip_right else text).split(_CUT)
        ids = self._piece(first_piece, first=first)
        for piece in pieces:
            ids += self._piece(piece, first=False)
        return ids

    def _piece(self, text: str, *, first: bool) -> list[int]:
        text = self.restore(text)
        if not text:
            return []
        if first or not self._prefixes:
            return self.encode(text)
        anchor = self.encode("\n")
        with_anchor = self.encode(f"\n{text}")
        return with_anchor[len(anchor) :] if with_anchor[: len(anchor)] == anchor else self.encode(text)

    @cached_property
    def _prefixes(self) -> bool:
        """Whether a text of its own begins otherwise than one after a special token (sentencepiece's first blank)."""
        if not self.specials:
            return False
        name, (token, _, _) = next(iter(self.specials.items()))
        inside = list(self.tokenizer.encode(f"{name}a", add_special_tokens=False))
        return inside != [token, *self.tokenizer.encode("a", add_special_tokens=False)]

    def restore(self, text: str) -> str:
        """Undo :meth:`guard`."""
        for mark, name in self._placeholders.items():
            text = text.replace(mark, name)
        return text.replace(_CUT, "")


def _halves(name: str) -> str:
    middle = len(name) // 2
    return f"{name[:middle]}{_CUT}{name[middle:]}"


_WARNED: set[str] = set()
