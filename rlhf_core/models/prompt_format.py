"""Messages to token ids: the model's chat template, or plain text for a base model."""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from rlhf_core.data.tools import load_format
from rlhf_core.models.bridge import Bridge, cut_sampled, in_order
from rlhf_core.models.modality import OwnTokens, modality_of
from rlhf_core.models.template_writer import TemplateWriter, TextEncoder, keeps
from rlhf_core.models.tool_templates import FIX
from rlhf_core.types.errors import ModelError
from rlhf_core.types.messages import AssistantTurn, Message, Tool, content_of
from rlhf_core.types.rollouts import Prompt

log = logging.getLogger("rlhf.models")
LETTER_RUNS = " ".join(f"{letter * 60}!" for letter in "aA0_ \n")
"""Expressions that try every way to cut a text, such as ``(a+)+b``, fail on runs of one letter."""


class Formatter(TemplateWriter):
    """Encodes prompts for one tokenizer.

    Args:
        tokenizer: the policy's.
        prompt_format: ``auto``, ``chat`` or ``raw``.
        tool_format: how the policy writes calls; ``auto`` tells by the chat template.

    Raises:
        ModelError: ``chat`` without a template.
    """

    def __init__(self, tokenizer: Any, prompt_format: str, tool_format: str = "auto") -> None:
        has_template = bool(getattr(tokenizer, "chat_template", None))
        if prompt_format == "chat" and not has_template:
            raise ModelError(
                "the model's tokenizer has no chat template",
                why="it looks like a base model",
                fix="--set model.chat_template=plain, or --set model.prompt_format=raw for single questions",
            )
        super().__init__(tokenizer, chat=has_template if prompt_format == "auto" else prompt_format == "chat")
        self._format_name = tool_format
        self.modality = modality_of(tokenizer)
        self.warning = ""
        if prompt_format == "raw" and has_template:
            self.warning = (
                "prompt_format is raw, but the tokenizer has a chat template: an instruct model that is fed plain text "
                "rambles and misses its end token; use prompt_format: chat unless it is meant"
            )
            log.warning("%s", self.warning)

    def encode(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> tuple[int, ...]:
        """Token ids up to where the policy writes. Names of special tokens in the messages are encoded as text.

        Raises:
            ModelError: the chat template refuses the messages (roles out of order, no system turn allowed, ...), does
                not begin the answer, or ignores tools; without a template, there are several turns, or tools.
        """
        if self.modality is not None:
            if isinstance(self.modality, OwnTokens):
                return tuple(self.modality.prompt_ids(messages))
            return tuple(self.text.encode(self.modality.prompt_text(messages)))
        if self.chat:
            self.check_template()
            return tuple(self.text.encode_filled(self.render(messages, tools, add_generation_prompt=True)))
        self.note_left_out(messages, text := "\n".join(map(content_of, messages)))
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
        return self.encode_raw(self.tokenizer, text, as_text=True)

    def encode_prompt(self, prompt: Prompt) -> tuple[int, ...]:
        """Token ids of a prompt, exactly as the policy is fed."""
        return self.encode(prompt.messages, prompt.tools)

    def bridge(self, previous: Sequence[int], messages: Sequence[Message], tools: Sequence[Tool] = ()) -> Bridge:
        """Token ids from a sampled turn to where the next one begins; the sampled tokens are never rendered again.

        A turn that was ended by a stop string or by its length is closed first. Results stand in the order of their
        calls. What tools and environments say is encoded as text.

        Args:
            previous: everything that the policy read and wrote so far, as tokens.
            messages: the whole conversation; the last turn of the assistant's is the sampled one.
            tools: those of the prompt.

        Raises:
            ModelError: the chat template refuses the messages, or does not mark where a turn ends.
        """
        answer = max((n for n, m in enumerate(messages) if m["role"] == "assistant"), default=-1)
        if answer < 0:
            raise ValueError("bridge needs the turn that was sampled among the messages")
        messages = (*messages[: answer + 1], *in_order(messages[answer], messages[answer + 1 :]))
        cut = cut_sampled(self, messages, answer, tools)
        if cut is None:
            return Bridge(self.encode(messages, tools), new_segment=True)
        ids = self.encode_rest(cut.after)
        ended = bool(previous) and previous[-1] == ids[0] if ids else True
        return Bridge(ids[1:] if ended else ids, new_segment=False)

    def encode_reply(
        self,
        prompt: Sequence[Message],
        text: str,
        turn: Message | None = None,
        tools: Sequence[Tool] = (),
        later: Sequence[Message] = (),
    ) -> tuple[int, ...]:
        """Token ids of a completion to imitate: those that the chat template writes after the prompt's, up to the token
        that ends the turn. A template without such a token gets the EOS; without a template the text does.

        Args:
            prompt: the turns before it.
            text: what the completion says.
            turn: the completion whole, where it is more than a text (calls, reasoning).
            tools: those of the prompt.
            later: turns that follow, for templates that write earlier answers otherwise.

        Raises:
            ModelError: the template does not write the turn after its own prompt, or there is none for calls.
        """
        if turn is None and (self.modality is not None or not self.chat):
            return self.encode_completion(text)
        if not self.chat:
            raise ModelError("tool calls cannot be written without a chat template", fix=FIX)
        answer, ending = write_answer(self, prompt, turn or {"role": "assistant", "content": text}, tools, later)
        return (*answer, *(ending[:1] or self._added_end))

    def encode_answer(
        self, prompt: Sequence[Message], text: str, turn: Message | None = None, tools: Sequence[Tool] = ()
    ) -> tuple[int, ...]:
        """As :meth:`encode_reply`, for a conversation that is judged: all that the template writes after the answer is
        there. A text that it would not write after its own prompt stands as it is.

        Raises:
            ModelError: the chat template cannot write calls, or there is none.
        """
        if turn is not None and not self.chat:
            raise ModelError("tool calls cannot be written without a chat template", fix=FIX)
        try:
            if turn is not None or (self.chat and self.modality is None):
                written = write_answer(self, prompt, turn or {"role": "assistant", "content": text}, tools)
                return (*written.answer, *(written.ending or self._added_end))
        except ModelError:
            if turn is not None:
                raise
        return (*self.text.encode(text), *self.closing)

    @cached_property
    def _added_end(self) -> tuple[int, ...]:
        """Of a template that ends a turn by no special token: the EOS, which is said once."""
        log.warning("the chat template ends a turn by no special token: the tokenizer's EOS is put after each answer")
        return () if self.tokenizer.eos_token_id is None else (self.tokenizer.eos_token_id,)

    def parse(
        self, completion: Sequence[int], tools: Sequence[Tool], *, cut: bool = False, earlier: int = 0
    ) -> AssistantTurn:
        """What the policy wrote in a turn (the end token included or not): text, reasoning and calls, those that cannot
        run with an error. ``cut``: it ended at its limit of tokens. Ids go on from ``earlier`` calls of the
        conversation.

        Raises:
            ConfigError: no plugin is installed that reads calls (``rlhf-plugin-episodes``).
        """
        ends = {self.tokenizer.eos_token_id, *map(self.tokenizer.convert_tokens_to_ids, self.turn_ends)}
        ids = list(itertools.takewhile(lambda token: token not in ends, completion))
        text = str(self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))
        return self._read_turn(text, tools, cut=cut, earlier=earlier)

    @cached_property
    def _read_turn(self) -> Callable[..., AssistantTurn]:
        return load_format("auto")(self.tokenizer, self._format_name)

    def encode_text(self, text: str) -> tuple[int, ...]:
        """Token ids of what a tool, an environment or a user says, without any frame; it is text, whatever it holds."""
        return tuple(self.text.encode(text))

    def encode_completion(self, text: str) -> tuple[int, ...]:
        """Token ids of a text and the tokenizer's EOS, without a chat template."""
        own = self.modality if isinstance(self.modality, OwnTokens) else None
        return (*(own.completion_ids(text) if own else self.text.encode(text)), self.tokenizer.eos_token_id)

    @staticmethod
    def encode_raw(tokenizer: Any, text: str, *, as_text: bool = False) -> tuple[int, ...]:
        """Token ids of a prompt without a chat template, up to where the policy writes; ``as_text``: names of special
        tokens in it are text, as they must be in data.
        """
        encode = TextEncoder(tokenizer).encode if as_text else tokenizer.encode
        ids = list(encode(text, add_special_tokens=True))
        if ids and ids[-1] == tokenizer.eos_token_id != tokenizer.bos_token_id:
            ids.pop()  # some tokenizers close every text; the policy must continue from here
        return tuple(ids)


def end_ids(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """Every token id that ends a completion: the generation config's (one or a list), and the tokenizer's EOS."""
    ids = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    ids = getattr(model.config, "eos_token_id", None) if ids is None else ids
    listed = [] if ids is None else list(ids) if isinstance(ids, (list, tuple)) else [ids]
    tokenizer_eos = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    return tuple(dict.fromkeys([*listed, *tokenizer_eos]))


def stop_at_turn_ends(model: Any, writer: TemplateWriter) -> None:
    """Let the special token with which the chat template closes a turn end completions, if the model's files do not say
    so; it is saved with the model. Warn: a base model with an instruct model's template was never trained on it.
    """
    tokenizer, ends = writer.tokenizer, end_ids(model, writer.tokenizer)
    special = [int(tokenizer.convert_tokens_to_ids(name)) for name in writer.turn_ends[:1]]
    if not writer.closing or set(special or writer.closing) & set(ends):
        return
    log.warning(
        "the chat template closes a turn with %r, which is not a token that ends a completion (%s)%s. It looks like a "
        "base model with an instruct model's template, which it was never trained on. Train it on demonstrations "
        "first, use an instruct model, or --set model.prompt_format=raw with a prompt_template",
        tokenizer.decode(special or list(writer.closing)).strip(),
        ", ".join(repr(tokenizer.decode([i])) for i in ends) or "none",
        ": from now on it is" if special else "",
    )
    if special:
        (getattr(model, "generation_config", None) or model.config).eos_token_id = [*ends, *special]


class WrittenAnswer(NamedTuple):
    """An answer as the chat template writes it after its prompt, as token ids."""

    answer: tuple[int, ...]
    ending: tuple[int, ...]
    """From the token that ends the turn on; () of a template that has none, and all that it writes is ``answer``."""


def write_answer(
    writer: TemplateWriter,
    prompt: Sequence[Message],
    turn: Message,
    tools: Sequence[Tool],
    later: Sequence[Message] = (),
) -> WrittenAnswer:
    """The template's own tokens of [prompt, turn, later], from where those of the prompt end. Where one of them would
    reach over that place, which no policy can write, the answer's text is cut there.
    """
    opening = writer.render(prompt, tools, add_generation_prompt=True)
    whole = writer.render([*prompt, turn, *later], tools, add_generation_prompt=bool(later))
    prefix = writer.prefix
    if not whole.startswith(opening):  # the answer goes on after the prefix
        opening, prefix = opening.removesuffix(prefix), ""
    if not whole.startswith(opening):
        shared = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(opening, whole)))
        prompted, answered = (writer.text.restore(text[shared:])[:60] for text in (opening, whole))
        raise _unwritable(
            turn, f"a prompt for it goes on with {prompted!r}, and the turn, once it is there, with {answered!r}"
        )
    text = whole[len(opening) :]
    end_of_turn = min((p for end in writer.turn_ends if (p := text.find(end)) >= 0), default=len(text))
    if later and end_of_turn == len(text):
        raise _unwritable(turn, f"it marks its end by no special token, and goes on with {text[:60]!r}")
    body, ending = text[:end_of_turn], tuple(writer.text.encode_filled(text[end_of_turn:]))
    if not keeps(writer, "".join((prefix + body).split()), turn, blanks=False):
        raise _unwritable(
            turn, f"it leaves out the turn's text or its reasoning, and writes {writer.text.restore(body)[:60]!r}"
        )
    said = writer.text.guard(content_of(turn).rpartition("</think>")[2].strip())
    after = body.rpartition(said)[2] if said and said in body and not turn.get("tool_calls") else ""
    if names := writer.text.names_in(after):
        raise _unwritable(turn, f"it ends this turn by {names[0]!r}, and other answers otherwise")
    for call in turn.get("tool_calls") or ():
        if writer.text.guard(call["function"]["name"]) not in body:
            raise _unwritable(turn, f"it leaves out the call of {call['function']['name']!r}")
    before, ids = tuple(writer.text.encode_filled(opening)), tuple(writer.text.encode_filled(whole))
    last = len(ids) - len(ending)
    if ids[: len(before)] == before and ids[last:] == ending:
        return WrittenAnswer(ids[len(before) : last], ending)
    return WrittenAnswer(tuple(writer.text.encode_filled(body, first=False)), ending)


def _unwritable(turn: Message, why: str) -> ModelError:
    calls: Sequence[Message] = turn.get("tool_calls") or ()
    parts = [f"a call of {call['function']['name']}" for call in calls] + ["reasoning"] * bool(turn.get("reasoning"))
    return ModelError(
        "the chat template cannot render a turn that the run trains on",
        where=" with ".join([f"the turn: {content_of(turn)[:60]!r}", ", ".join(parts)][: 1 + bool(parts)]),
        why=why,
        fix="use a template that writes the turn after its own prompt, --set model.chat_template=FILE (hermes writes "
        "calls, keep_thinking the reasoning of earlier turns), or remove that row",
    )


def name_panics(tokenizer: Any) -> None:
    """Let every tokenizer of this class name itself where the tokenizers library panics, and try a few texts at once.

    Raises:
        ModelError: names the tokenizer; a panic itself is taken by no ``except Exception``.
    """
    for name in ("_encode_plus", "_decode"):
        call = getattr(type(tokenizer), name, None)
        if call is not None and not hasattr(call, "names_panics"):
            setattr(type(tokenizer), name, _naming(call))
    tokenizer.decode(tokenizer.encode(LETTER_RUNS, verbose=False))


def _naming(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def named(tokenizer: Any, *args: Any, **options: Any) -> Any:
        try:
            return call(tokenizer, *args, **options)
        except BaseException as error:
            if type(error).__name__ != "PanicException":
                raise
            why, fix = f"the tokenizers library gave up: {error}", "correct its regular expressions, such as (a+)+"
            what = f"the tokenizer of '{tokenizer.name_or_path}' cannot read or write a text"
            raise ModelError(what, where="tokenizer.json", why=why, fix=fix) from error

    named.names_panics = True  # type: ignore[attr-defined]
    return named
