"""Messages to token ids: the model's chat template, or plain text for a base model."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from rlhf_core.errors import ModelError
from rlhf_core.models.modality import modality_of
from rlhf_core.models.text_encoding import TextEncoder
from rlhf_core.types import Message, Prompt

log = logging.getLogger("rlhf.models")


MARK = "an-answer-to-find"


class Formatter:
    """Encodes prompts for one tokenizer.

    Args:
        tokenizer: the policy's.
        prompt_format: ``auto``, ``chat`` or ``raw``.

    Raises:
        ModelError: ``chat`` without a template.
    """

    def __init__(self, tokenizer: Any, prompt_format: str) -> None:
        self.tokenizer = tokenizer
        self._begins: str | None = None
        self._left_out: set[str] = set()
        has_template = bool(getattr(tokenizer, "chat_template", None))
        if prompt_format == "chat" and not has_template:
            raise ModelError(
                "the model's tokenizer has no chat template",
                why="it looks like a base model",
                fix="--set model.chat_template=plain, or --set model.prompt_format=raw for single questions",
            )
        self.chat = has_template if prompt_format == "auto" else prompt_format == "chat"
        self.text = TextEncoder(tokenizer)
        self.modality = modality_of(tokenizer)
        self.warning = ""
        if prompt_format == "raw" and has_template:
            self.warning = (
                "prompt_format is raw, but the tokenizer has a chat template: an instruct model that is "
                "fed plain text rambles and misses its end token; use prompt_format: chat unless it is "
                "meant"
            )
            log.warning("%s", self.warning)

    def encode(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Token ids up to where the policy writes. Names of special tokens in the messages are encoded as text.

        Raises:
            ModelError: the chat template refuses the messages (roles out of order, no system turn allowed, ...) or does
                not begin the answer; without a template, there are several turns.
        """
        if self.modality is not None:
            return tuple(self.text.encode(self.modality.prompt_text(messages)))
        if self.chat:
            self._check_template()
            return tuple(self.text.encode_filled(self.render(messages, add_generation_prompt=True)))
        turns = [m for m in messages if m["role"] != "system"]
        if len(turns) > 1:
            raise ModelError(
                f"a conversation of {len(turns)} turns cannot be written without a chat template",
                where=f"roles: {', '.join(m['role'] for m in messages)}; the first turn: {turns[0]['content'][:60]!r}",
                why="plain text would lose who says what",
                fix="--set model.chat_template=plain (or chatml, or a file with a Jinja template)",
            )
        return encode_raw_prompt(self.tokenizer, "\n".join(m["content"] for m in messages), as_text=True)

    def encode_prompt(self, prompt: Prompt) -> tuple[int, ...]:
        """Token ids of a prompt, exactly as the policy is fed."""
        return self.encode(prompt.messages)

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        """A conversation as the chat template writes it; names of special tokens in messages are placeholders.

        :meth:`encode_rest` encodes it, and :meth:`guard` finds a message in it.

        Raises:
            ModelError: the chat template refuses the messages.
        """
        guarded = [{**m, "content": self.text.guard(m["content"])} for m in messages]
        text = self._filled(messages, guarded, add_generation_prompt)
        inside = self.text.placeholders_in("".join(m["content"] for m in guarded))
        if self.text.placeholders_in(text) < inside:
            plain = self._filled(messages, messages, add_generation_prompt)
            if self.text.restore(text) != plain:
                first = next(m["content"] for m in messages if self.text.names_in(m["content"]))
                raise ModelError(
                    "the chat template changes the letters of messages, in which names of special tokens stand",
                    where=f"a message: {first[:60]!r}",
                    why="such names are kept as text only where the template writes messages as they are",
                    fix="remove the filter (upper, replace, a slice), or that row",
                )
        self._note_left_out(guarded, text)
        return text

    def _filled(
        self, messages: Sequence[Message], written: Sequence[Mapping[str, str]], add_generation_prompt: bool
    ) -> str:
        try:
            return str(
                self.tokenizer.apply_chat_template(
                    [dict(m) for m in written], tokenize=False, add_generation_prompt=add_generation_prompt
                )
            )
        except Exception as error:  # jinja2 raises whatever the template's author wrote
            raise refused(messages, error) from error

    def _note_left_out(self, messages: Sequence[Mapping[str, str]], text: str) -> None:
        """Warn once for each role that the policy is not shown; answers may be shortened (reasoning is left out)."""
        for m in messages:
            if m["role"] not in ("assistant", *self._left_out) and m["content"].strip() not in text:
                self._left_out.add(m["role"])
                log.warning(
                    "the chat template leaves out or changes what role %r says, such as %r: the policy never sees it "
                    "as it is",
                    *(m["role"], m["content"][:60]),
                )

    def guard(self, text: str) -> str:
        """A message's text as :meth:`render` writes it: with placeholders for names of special tokens."""
        return self.text.guard(text)

    def encode_rest(self, text: str) -> tuple[int, ...]:
        """Token ids of a part of what :meth:`render` returned, the template's special tokens included."""
        return tuple(self.text.encode_filled(text))

    def encode_text(self, text: str) -> tuple[int, ...]:
        """Token ids of what a tool, an environment or a user says, without any frame; it is text, whatever it holds."""
        return tuple(self.text.encode(text))

    def encode_completion(self, text: str) -> tuple[int, ...]:
        """Token ids of a completion to imitate, the end token included."""
        return (*self.text.encode(text), self.tokenizer.eos_token_id)

    def encode_answer(self, text: str) -> tuple[int, ...]:
        """Token ids of an answer inside a whole conversation, closed as the chat template closes a turn.

        Plain text, and a template that writes nothing after an answer, end with the tokenizer's EOS, if it has one.
        """
        return (*self.text.encode(text), *self.closing)

    @cached_property
    def closing(self) -> tuple[int, ...]:
        """What the chat template writes after an answer; without one, the tokenizer's EOS, if it has one."""
        after = ""
        if self.chat:
            try:
                after = self._answered(add_generation_prompt=False).rpartition(MARK)[2]
            except Exception as error:  # as in render; training will use conversations of this form
                log.info("the chat template does not tell how a turn ends: %s", error)
        if after:
            return tuple(self.tokenizer.encode(after, add_special_tokens=False))
        return () if self.tokenizer.eos_token_id is None else (self.tokenizer.eos_token_id,)

    def _answered(self, *, add_generation_prompt: bool) -> str:
        turns = [{"role": "user", "content": "x"}, {"role": "assistant", "content": MARK}]
        return str(
            self.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=add_generation_prompt)
        )

    def _check_template(self) -> None:
        """Refuse a template that ignores ``add_generation_prompt``: the policy would be asked to write its own header.

        Raises:
            ModelError: names what it leaves out.
        """
        if self._begins is None:
            self._begins = self._missing_header()
        if self._begins:
            raise ModelError(
                "the chat template ignores add_generation_prompt",
                why=f"before an answer it writes {self._begins!r}, but not where an answer is asked for",
                fix="append {% if add_generation_prompt %}" + self._begins.replace("\n", "\\n") + "{% endif %} to the "
                "template, and give the file as --set model.chat_template=FILE",
            )

    def _missing_header(self) -> str:
        """What the template writes between a question and its answer and leaves out without the answer; "" if nothing.

        Templates that close the question so that nothing is missing (``[INST] x [/INST]``) ignore the flag rightly.
        """
        question = [{"role": "user", "content": "x"}]
        try:
            asked, bare = (
                self.tokenizer.apply_chat_template(question, tokenize=False, add_generation_prompt=flag)
                for flag in (True, False)
            )
            answered = self._answered(add_generation_prompt=False)
        except Exception:  # roles that this template does not take; the data's own are tried when they come
            return ""
        header = answered.removeprefix(asked).partition(MARK)[0]
        return header if asked == bare and answered.startswith(asked) and header.strip() else ""


def refused(messages: Sequence[Message], error: Exception) -> ModelError:
    """The error for messages that a chat template does not take."""
    roles = ", ".join(str(m.get("role")) for m in messages)
    return ModelError(
        "the model's chat template refuses these messages",
        where=f"roles: {roles}",
        why=str(error),
        fix="check the roles in the dataset, or --set model.prompt_format=raw",
    )


def template_warning(formatter: Formatter, ends: Sequence[int]) -> str:
    """What is suspicious about a chat template that closes turns with a token which ends no completion; "" if it does.

    Published base models often carry their instruct sibling's template; nobody taught them its tokens.

    Args:
        formatter: of the policy's tokenizer.
        ends: see :func:`end_ids`.
    """
    closing = formatter.closing if formatter.chat else ()
    if not closing or set(closing) & set(ends):
        return ""
    tokenizer = formatter.tokenizer
    known = ", ".join(repr(tokenizer.decode([i])) for i in ends) or "none"
    return (
        f"the chat template closes a turn with {tokenizer.decode(list(closing)).strip()!r}, which is not a token "
        f"that ends a completion ({known}): it looks like a base model with an instruct model's template, which it "
        "was never trained on. Use --set model.prompt_format=raw with a prompt_template, or an instruct model"
    )


def encode_raw_prompt(tokenizer: Any, text: str, *, as_text: bool = False) -> tuple[int, ...]:
    """Token ids of a prompt without a chat template, up to where the policy writes.

    Args:
        tokenizer: the policy's.
        text: the prompt.
        as_text: names of special tokens in it are text, as they must be in data; otherwise they become the tokens.
    """
    encode = TextEncoder(tokenizer).encode if as_text else tokenizer.encode
    ids = list(encode(text, add_special_tokens=True))
    if ids and ids[-1] == tokenizer.eos_token_id != tokenizer.bos_token_id:
        ids.pop()  # some tokenizers close every text; the policy must continue from here
    return tuple(ids)


def end_ids(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """Every token id that ends a completion: the generation config's (one or a list), and the tokenizer's EOS.

    Example:
        Llama 3 Instruct: ``(128001, 128008, 128009)``
    """
    ids = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    ids = getattr(model.config, "eos_token_id", None) if ids is None else ids
    listed = [] if ids is None else list(ids) if isinstance(ids, (list, tuple)) else [ids]
    tokenizer_eos = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    return tuple(dict.fromkeys([*listed, *tokenizer_eos]))
