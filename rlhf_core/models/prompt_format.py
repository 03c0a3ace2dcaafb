"""Messages to token ids: the model's chat template, or plain text for a base model."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from rlhf_core.errors import ModelError
from rlhf_core.types import Message, Prompt

log = logging.getLogger("rlhf.models")


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
        has_template = bool(getattr(tokenizer, "chat_template", None))
        if prompt_format == "chat" and not has_template:
            raise ModelError(
                "the model's tokenizer has no chat template",
                why="it looks like a base model",
                fix="--set model.prompt_format=raw",
            )
        self.chat = has_template if prompt_format == "auto" else prompt_format == "chat"
        self.warning = ""
        if prompt_format == "raw" and has_template:
            self.warning = (
                "prompt_format is raw, but the tokenizer has a chat template: an instruct model that is "
                "fed plain text rambles and misses its end token; use prompt_format: chat unless it is "
                "meant"
            )
            log.warning("%s", self.warning)

    def encode(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Token ids up to where the policy writes.

        Raises:
            ModelError: the chat template refuses the messages (roles out of order, no system turn allowed, ...).
        """
        if self.chat:
            return self._chat(messages)
        return encode_raw_prompt(self.tokenizer, "\n".join(m["content"] for m in messages))

    def encode_prompt(self, prompt: Prompt) -> tuple[int, ...]:
        """Token ids of a prompt, exactly as the policy is fed."""
        return self.encode(prompt.messages)

    def _chat(self, messages: Sequence[Message]) -> tuple[int, ...]:
        try:
            return tuple(
                self.tokenizer.apply_chat_template(
                    [dict(m) for m in messages], add_generation_prompt=True, tokenize=True, return_dict=False
                )
            )
        except Exception as error:  # jinja2 raises whatever the template's author wrote
            raise refused(messages, error) from error

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        """A conversation as the chat template writes it.

        Raises:
            ModelError: the chat template refuses the messages.
        """
        try:
            return str(
                self.tokenizer.apply_chat_template(
                    [dict(m) for m in messages], tokenize=False, add_generation_prompt=add_generation_prompt
                )
            )
        except Exception as error:  # as in _chat
            raise refused(messages, error) from error

    def encode_rest(self, text: str) -> tuple[int, ...]:
        """Token ids of text inside a conversation, special tokens in it included; none are added."""
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))

    def encode_completion(self, text: str) -> tuple[int, ...]:
        """Token ids of a completion to imitate, the end token included."""
        ids = self.tokenizer.encode(text, add_special_tokens=False)
        return (*ids, self.tokenizer.eos_token_id)

    def encode_answer(self, text: str) -> tuple[int, ...]:
        """Token ids of an answer inside a whole conversation, closed as the chat template closes a turn.

        Plain text, and a template that writes nothing after an answer, end with the tokenizer's EOS, if it has one.
        """
        return (*self.tokenizer.encode(text, add_special_tokens=False), *self.closing)

    @cached_property
    def closing(self) -> tuple[int, ...]:
        """What the chat template writes after an answer; without one, the tokenizer's EOS, if it has one."""
        mark, after = "an-answer-to-find", ""
        if self.chat:
            turns = [{"role": "user", "content": "x"}, {"role": "assistant", "content": mark}]
            try:
                after = self.tokenizer.apply_chat_template(turns, tokenize=False).rpartition(mark)[2]
            except Exception as error:  # as in _chat; training will use conversations of this form
                log.info("the chat template does not tell how a turn ends: %s", error)
        if after:
            return tuple(self.tokenizer.encode(after, add_special_tokens=False))
        return () if self.tokenizer.eos_token_id is None else (self.tokenizer.eos_token_id,)


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


def encode_raw_prompt(tokenizer: Any, text: str) -> tuple[int, ...]:
    """Token ids of a prompt without a chat template, up to where the policy writes."""
    ids = list(tokenizer.encode(text, add_special_tokens=True))
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
