"""A conversation as a chat template writes it; no message can close its own turn and speak as another role."""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from rlhf_core.models.chat_templates import prefix_of
from rlhf_core.models.tool_templates import ASKED, fill, ignored, template_message, template_text, unwritten, with_names
from rlhf_core.types.errors import ModelError
from rlhf_core.types.messages import VARIABLES, Message, Tool, content_of

log = logging.getLogger("rlhf.models")
ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|call|>", "<|return|>")
"""Special tokens that end a turn in templates that do not end all turns alike."""
MARK = "an-answer-to-find"
_NONCE = secrets.token_hex(6)
"""Random, so that no data contains a placeholder."""
_CUT = f"cut{_NONCE}e"
"""Stands where a text is cut in two, so that the name of an added token in it is not read as that token."""


class TextEncoder:
    """Encodes text of one tokenizer, and chat templates filled with text."""

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
        """Token ids; names of special tokens are plain text. Text without such names gets the tokenizer's own ids."""
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
        """Placeholders for names of special tokens; ``added``: of added tokens such as ``<tool_call>``, too."""
        if added and self._added_pattern is not None:
            text = self._added_pattern.sub(lambda m: f"{m[0][: len(m[0]) // 2]}{_CUT}{m[0][len(m[0]) // 2 :]}", text)
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

    def encode_filled(self, text: str, *, first: bool = True) -> list[int]:
        """Token ids of a filled chat template: special tokens where it writes their names, text for placeholders; not
        ``first``: of what goes on after other text.
        """
        if first and _NONCE not in text:
            return list(self.tokenizer.encode(text, add_special_tokens=False))
        ids: list[int] = []
        at, strip_left = 0, False
        for match in self._pattern.finditer(text) if self._pattern else ():
            token, lstrip, rstrip = self.specials[match[0]]
            ids += self._run(text[at : match.start()], strip_left, lstrip, first=first and at == 0)
            ids.append(token)
            at, strip_left = match.end(), rstrip
        return [*ids, *self._run(text[at:], strip_left, False, first=first and at == 0)]

    def _run(self, text: str, strip_left: bool, strip_right: bool, *, first: bool) -> list[int]:
        """Token ids of what stands between two special tokens, which may take the blanks beside them."""
        text = text.lstrip() if strip_left else text
        pieces = (text.rstrip() if strip_right else text).split(_CUT)
        return [i for n, piece in enumerate(pieces) for i in self._piece(piece, first=first and n == 0)]

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


_WARNED: set[str] = set()


class TemplateWriter:
    """Writes conversations with one tokenizer's chat template."""

    def __init__(self, tokenizer: Any, *, chat: bool) -> None:
        self.tokenizer, self.chat, self.text = tokenizer, chat, TextEncoder(tokenizer)
        self._unwritten: dict[bool, str] = {}
        self._left_out: set[str] = set()

    @cached_property
    def prefix(self) -> str:
        """How answers begin (``model.assistant_prefix``); turns that are there lack it."""
        return prefix_of(template_text(self.tokenizer))

    def render(self, messages: Sequence[Message], tools: Sequence[Tool] = (), *, add_generation_prompt: bool) -> str:
        """A conversation as the template writes it; names of special tokens in messages are placeholders."""
        self._check_tools(messages, tools)
        template = template_text(self.tokenizer)
        given = [template_message(m, template) for m in with_names(messages)]
        guarded = [self._guarded(m, added=bool(tools)) for m in given]
        shown = [self._guarded_value(tool, added=True) for tool in tools]
        text = self._filled(messages, guarded, shown, add_generation_prompt)
        inside = self.text.placeholders_in(str([*(list(m.values()) for m in guarded), shown]))
        if self.text.placeholders_in(text) < inside:
            plain = self._filled(messages, given, tools, add_generation_prompt)
            if self.text.restore(text) != plain:
                first = next((c for m in given if self.text.names_in(c := m["content"])), str(messages[-1]))
                raise ModelError(
                    "the chat template changes the text of messages that contain names of special tokens",
                    where=f"a message: {first[:60]!r}",
                    why="such names stay text only if the template copies messages unchanged",
                    fix="remove the filter (upper, replace, a slice), or that row",
                )
        self.note_left_out(guarded, text, template)
        return text

    def _check_tools(self, messages: Sequence[Message], tools: Sequence[Tool]) -> None:
        for needed, calls in ((bool(tools), False), (any(m.get("tool_calls") for m in messages), True)):
            if needed and calls not in self._unwritten:
                self._unwritten[calls] = unwritten(self.tokenizer, calls=calls)
            if needed and self._unwritten[calls]:
                raise ignored(self._unwritten[calls], self.tokenizer)

    def _guarded(self, message: Mapping[str, Any], *, added: bool) -> dict[str, Any]:
        """A turn with placeholders; where there are tools, only the policy writes added tokens, outside arguments."""
        shown = (added and message["role"] != "assistant") or "tool_call_id" in message
        return {
            key: value if key == "role" else self._guarded_value(value, added=shown or key == "tool_calls")
            for key, value in message.items()
        }

    def _guarded_value(self, value: Any, *, added: bool) -> Any:
        if isinstance(value, str):
            return self.text.guard(value, added=added)
        if isinstance(value, Mapping):
            return {self.text.guard(str(k), added=added): self._guarded_value(v, added=added) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._guarded_value(item, added=added) for item in value]
        return value

    def _filled(
        self,
        messages: Sequence[Message],
        written: Sequence[Mapping[str, Any]],
        tools: Sequence[Tool],
        add_generation_prompt: bool,
    ) -> str:
        try:
            return fill(self.tokenizer, written, tools, generation=add_generation_prompt)
        except ModelError:
            raise
        except Exception as error:  # jinja2 raises whatever the template's author wrote
            raise refused(messages, error) from error

    def note_left_out(self, messages: Sequence[Mapping[str, Any]], text: str, template: str = "") -> None:
        """Warn once for each role that the policy is not shown, and for each variable of a row that the template does
        not use; answers may be shortened (reasoning is left out).
        """
        for m in messages:
            for name in {*m.get(VARIABLES, ())} - self._left_out - {*re.findall(r"\w+", template)}:
                self._left_out.add(name)
                log.warning("rows give %r in %s, which this prompt's form does not use", name, VARIABLES)
            if m["role"] not in ("assistant", *self._left_out) and m["content"].strip() not in text:
                self._left_out.add(m["role"])
                log.warning(
                    "the chat template leaves out or changes what role %r says, such as %r: the policy never sees it "
                    "as it is",
                    *(m["role"], m["content"][:60]),
                )

    def encode_rest(self, text: str) -> tuple[int, ...]:
        """Token ids of a part of what :meth:`render` returned, the template's special tokens included."""
        return tuple(self.text.encode_filled(text))

    @cached_property
    def turn_ends(self) -> tuple[str, ...]:
        """Special tokens with which the chat template ends a turn of the assistant; none if it does so otherwise."""
        names = self.text.names_in(self._after_answer)
        return tuple(dict.fromkeys([*names[:1], *(end for end in ENDS if end in self.text.specials)])) if names else ()

    @cached_property
    def closing(self) -> tuple[int, ...]:
        """What the chat template writes after an answer; without one, the tokenizer's EOS, if it has one."""
        if self._after_answer:
            return tuple(self.tokenizer.encode(self._after_answer, add_special_tokens=False))
        return () if self.tokenizer.eos_token_id is None else (self.tokenizer.eos_token_id,)

    @cached_property
    def _after_answer(self) -> str:
        if not self.chat:
            return ""
        try:
            text = self._answered
        except Exception as error:  # as in render; training will use conversations of this form
            log.info("the chat template does not tell how a turn ends: %s", error)
            return ""
        if MARK in text:
            return text.rpartition(MARK)[2]
        raise ModelError(
            "the chat template changes what an answer says",
            why=f"a conversation that ends with {MARK!r} it writes as {text[-80:]!r}",
            fix="remove the filter (upper, replace, a slice), and give the file as --set model.chat_template=FILE",
        )

    @property
    def _answered(self) -> str:
        return fill(self.tokenizer, [ASKED, {"role": "assistant", "content": MARK}], (), generation=False)

    def check_template(self) -> None:
        """Refuse a template that ignores ``add_generation_prompt``: the policy would have to write its own header."""
        if begins := self._missing_header:
            raise ModelError(
                "the chat template ignores add_generation_prompt",
                why=f"before an answer it writes {begins!r}, but not where an answer is asked for",
                fix="append {% if add_generation_prompt %}" + begins.replace("\n", "\\n") + "{% endif %} to the "
                "template, and give the file as --set model.chat_template=FILE",
            )

    @cached_property
    def _missing_header(self) -> str:
        """What the template writes before an answer and leaves out without one; "" for ``[INST] x [/INST]``."""
        try:
            prompted, bare = (fill(self.tokenizer, [ASKED], (), generation=flag) for flag in (True, False))
            answered = self._answered
        except Exception:  # roles that this template does not take; the data's own are tried when they come
            return ""
        header = answered.removeprefix(prompted).partition(MARK)[0]
        return header if prompted == bare and answered.startswith(prompted) and header.strip() else ""


_THOUGHT = re.compile(r"</?think>")


def keeps(writer: TemplateWriter, body: str, turn: Message, *, blanks: bool = True) -> bool:
    """Whether all text of a turn stands in what the template makes of it; ``blanks``: those inside it, too."""
    for part in (*_THOUGHT.split(content_of(turn)), turn.get("reasoning") or ""):
        text = writer.text.guard(part.strip())
        if (text if blanks else "".join(text.split())) not in body:
            return False
    return True


def refused(messages: Sequence[Message], error: Exception) -> ModelError:
    """The error for messages that a chat template does not take."""
    roles = ", ".join(str(m.get("role")) for m in messages)
    what, fix = "the model's chat template refuses these messages", "check the roles in the dataset, or --set"
    return ModelError(what, where=f"roles: {roles}", why=str(error), fix=f"{fix} model.prompt_format=raw")
