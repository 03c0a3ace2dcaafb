"""Messages to token ids: the model's chat template, or plain text for a base model."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from rlhf_core.data.tool_call_formats import ToolFormat
from rlhf_core.data.tool_call_parser import AssistantTurn, parse_turn
from rlhf_core.models.bridge import ENDS, Bridge, bridge, reply
from rlhf_core.models.modality import OwnTokens, modality_of
from rlhf_core.models.text_encoding import TextEncoder
from rlhf_core.models.tool_call_format import choose_format
from rlhf_core.models.tool_templates import FIX, as_given, fill, ignored, template_text, unwritten, with_names
from rlhf_core.types.errors import ModelError
from rlhf_core.types.messages import Message, Tool, content_of
from rlhf_core.types.rollouts import Prompt

log = logging.getLogger("rlhf.models")


MARK = "an-answer-to-find"


class Formatter:
    """Encodes prompts for one tokenizer.

    Args:
        tokenizer: the policy's.
        prompt_format: ``auto``, ``chat`` or ``raw``.
        tool_format: how the policy writes calls; ``auto`` tells by the chat template.

    Raises:
        ModelError: ``chat`` without a template.
    """

    def __init__(self, tokenizer: Any, prompt_format: str, tool_format: str = "auto") -> None:
        self.tokenizer, self._format_name = tokenizer, tool_format
        self._unwritten: dict[bool, str] = {}
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

    def encode(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> tuple[int, ...]:
        """Token ids up to where the policy writes. Names of special tokens in the messages are encoded as text.

        Raises:
            ModelError: the chat template refuses the messages (roles out of order, no system turn allowed, ...), does
                not begin the answer, or ignores tools; without a template, there are several turns, or tools.
        """
        if isinstance(self.modality, OwnTokens):
            return tuple(self.modality.prompt_ids(messages))
        if self.modality is not None:
            return tuple(self.text.encode(self.modality.prompt_text(messages)))
        if self.chat:
            self._check_template()
            return tuple(self.text.encode_filled(self.render(messages, tools, add_generation_prompt=True)))
        if tools:
            raise ModelError("tools cannot be written without a chat template", why="the prompt is plain text", fix=FIX)
        turns = [m for m in messages if m["role"] != "system"]
        if len(turns) > 1:
            raise ModelError(
                f"a conversation of {len(turns)} turns cannot be written without a chat template",
                where=f"roles: {', '.join(m['role'] for m in messages)}; the first turn: {content_of(turns[0])[:60]!r}",
                why="plain text does not show who says what",
                fix="--set model.chat_template=plain (or chatml, or a file with a Jinja template)",
            )
        return encode_raw_prompt(self.tokenizer, "\n".join(map(content_of, messages)), as_text=True)

    def encode_prompt(self, prompt: Prompt) -> tuple[int, ...]:
        """Token ids of a prompt, exactly as the policy is fed."""
        return self.encode(prompt.messages, prompt.tools)

    def render(self, messages: Sequence[Message], tools: Sequence[Tool] = (), *, add_generation_prompt: bool) -> str:
        """A conversation as the chat template writes it; names of special tokens in messages are placeholders.

        :meth:`encode_rest` encodes it, and :meth:`guard` finds a message in it.

        Raises:
            ModelError: the chat template refuses the messages, or ignores their tools, calls or results.
        """
        self._check_tools(messages, tools)
        template = template_text(self.tokenizer)
        given = [as_given(m, template) for m in with_names(messages)]
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
        self._note_left_out(guarded, text)
        return text

    def _check_tools(self, messages: Sequence[Message], tools: Sequence[Tool]) -> None:
        """Refuse tools, and turns with calls, that the template would leave out."""
        for needed, calls in ((bool(tools), False), (any(m.get("tool_calls") for m in messages), True)):
            if needed and calls not in self._unwritten:
                self._unwritten[calls] = unwritten(self.tokenizer, calls=calls)
            if needed and self._unwritten[calls]:
                raise ignored(self._unwritten[calls], self.tokenizer)

    def _guarded(self, message: Mapping[str, Any], *, added: bool) -> dict[str, Any]:
        """A turn with placeholders; where there are tools, only the policy may write added tokens such as <tool_call>,
        and not in the arguments of a call."""
        writer = message["role"] == "assistant"
        return {
            key: value
            if key == "role"
            else self._guarded_value(
                value, added=(added and not writer) or key == "tool_calls" or "tool_call_id" in message
            )
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
        except Exception as error:  # jinja2 raises whatever the template's author wrote
            raise refused(messages, error) from error

    def _note_left_out(self, messages: Sequence[Mapping[str, Any]], text: str) -> None:
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

    def shown(self, text: str) -> str:
        """What :meth:`render` returned, for people: without placeholders."""
        return self.text.restore(text)

    def bridge(self, previous: Sequence[int], messages: Sequence[Message], tools: Sequence[Tool] = ()) -> Bridge:
        """Token ids from a sampled turn to where the next one begins; the sampled tokens are never rendered again.

        A turn that was ended by a stop string or by its length is closed first. Results stand in the order of their
        calls. What tools and environments say is encoded as text.

        Args:
            previous: everything that the policy read and wrote so far, as tokens.
            messages: the whole conversation: up to the sampled turn (the last of the assistant's), and what follows it.
            tools: those of the prompt.

        Raises:
            ModelError: the chat template refuses the messages, or does not mark where a turn ends.
        """
        return bridge(self, previous, messages, tools)

    def encode_reply(
        self, prompt: Sequence[Message], text: str, turn: Message | None = None, tools: Sequence[Tool] = ()
    ) -> tuple[int, ...]:
        """Token ids of a completion to imitate or judge, the end token included.

        Args:
            prompt: the turns before it.
            text: the completion.
            turn: the completion whole, where it is more than a text; the chat template writes its calls.
            tools: those of the prompt.

        Raises:
            ModelError: the chat template cannot write the turn, or there is none.
        """
        if turn is None:
            return self.encode_completion(text)
        if not self.chat:
            raise ModelError("tool calls cannot be written without a chat template", fix=FIX)
        return reply(self, prompt, turn, tools)

    def parse(
        self, completion: Sequence[int], tools: Sequence[Tool], *, cut: bool = False, earlier: int = 0
    ) -> AssistantTurn:
        """What the policy wrote in a turn: text, reasoning and calls, those that cannot run with an error.

        Args:
            completion: its tokens, the end token included or not.
            tools: those of the prompt.
            cut: whether it ended at its limit of tokens.
            earlier: how many calls the conversation holds already; ids go on from there.
        """
        ends = {self.tokenizer.eos_token_id, *map(self.tokenizer.convert_tokens_to_ids, self.turn_ends)}
        ids = list(itertools.takewhile(lambda token: token not in ends, completion))
        text = str(self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))
        return parse_turn(text, self.tool_format, tools, cut=cut, earlier=earlier)

    @cached_property
    def tool_format(self) -> ToolFormat:
        """How the policy writes calls."""
        return choose_format(self.tokenizer, self._format_name)

    @cached_property
    def turn_ends(self) -> tuple[str, ...]:
        """Special tokens with which the chat template ends a turn of the assistant; none if it does so otherwise."""
        names = self.text.names_in(self._after_answer)
        return tuple(dict.fromkeys([*names[:1], *(end for end in ENDS if end in self.text.specials)])) if names else ()

    def encode_rest(self, text: str) -> tuple[int, ...]:
        """Token ids of a part of what :meth:`render` returned, the template's special tokens included."""
        return tuple(self.text.encode_filled(text))

    def encode_text(self, text: str) -> tuple[int, ...]:
        """Token ids of what a tool, an environment or a user says, without any frame; it is text, whatever it holds."""
        return tuple(self.text.encode(text))

    def encode_completion(self, text: str) -> tuple[int, ...]:
        """Token ids of a completion to imitate, the end token included."""
        own = self.modality if isinstance(self.modality, OwnTokens) else None
        return (*(own.completion_ids(text) if own else self.text.encode(text)), self.tokenizer.eos_token_id)

    def encode_answer(self, text: str) -> tuple[int, ...]:
        """Token ids of an answer inside a whole conversation, closed as the chat template closes a turn.

        Plain text, and a template that writes nothing after an answer, end with the tokenizer's EOS, if it has one.
        """
        return (*self.text.encode(text), *self.closing)

    @cached_property
    def closing(self) -> tuple[int, ...]:
        """What the chat template writes after an answer; without one, the tokenizer's EOS, if it has one."""
        if self._after_answer:
            return tuple(self.tokenizer.encode(self._after_answer, add_special_tokens=False))
        return () if self.tokenizer.eos_token_id is None else (self.tokenizer.eos_token_id,)

    @cached_property
    def _after_answer(self) -> str:
        """What the chat template writes after an answer that is the last turn."""
        if not self.chat:
            return ""
        try:
            return self._answered(add_generation_prompt=False).rpartition(MARK)[2]
        except Exception as error:  # as in render; training will use conversations of this form
            log.info("the chat template does not tell how a turn ends: %s", error)
            return ""

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
