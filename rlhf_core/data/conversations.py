"""Preference pairs and demonstrations in every form that public data sets use."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from rlhf_core.data.schema import PROMPT_COLUMNS, RawRow, RowReader, UnusableRow
from rlhf_core.types.errors import DatasetError
from rlhf_core.types.messages import (
    Demonstration,
    Message,
    PreferencePair,
    Tool,
    UnpairedPreference,
    content_of,
    message_text,
)


def openai_row(messages: Sequence[Message], tools: Sequence[Tool] = ()) -> dict[str, Any]:
    """A row that reads back as the same conversation: arguments as JSON text, ``content`` null beside calls alone."""
    return {"messages": [_openai(m) for m in messages], **({"tools": _plain(tools)} if tools else {})}


def _openai(message: Message) -> dict[str, Any]:
    row = _plain(message)
    if not message.get("tool_calls"):
        return row
    row["content"] = content_of(message) or None
    for call in row["tool_calls"]:
        call["function"]["arguments"] = json.dumps(call["function"]["arguments"], ensure_ascii=False)
    return row


def _plain(value: Any) -> Any:
    """The value in dicts and lists that may be changed."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


Reply: TypeAlias = "tuple[str, Message | None]"
"""A completion, and the turn whole where it is more than a text; as `Formatter.encode_reply` takes them."""


def replies(row: PreferencePair | Demonstration | UnpairedPreference) -> tuple[Reply, ...]:
    """The chosen and the rejected side of a pair; the one answer of any other row."""
    if isinstance(row, PreferencePair):
        return (row.chosen, row.chosen_turn), (row.rejected, row.rejected_turn)
    return ((row.completion, row.turn),)


class Side(NamedTuple):
    """A conversation up to its last answer, and the answer."""

    prompt: tuple[Message, ...]
    text: str
    turn: Message | None = None
    """The answer whole, where it is more than a text: it makes calls, or has reasoning."""


class PairSides(NamedTuple):
    """What a row of preferences holds."""

    prompt: tuple[Message, ...]
    chosen: Side
    rejected: Side


_TURN = re.compile(r"\n\n(Human|Assistant):")
_START = re.compile(r"\s*Human:")


def read_pair(reader: RowReader, record: RawRow) -> PairSides:
    """Prompt, chosen and rejected from text columns, whole conversations, ShareGPT, or Human/Assistant transcripts."""
    chosen, rejected = (_side(reader, record, reader.need(record, c)) for c in ("chosen", "rejected"))
    if chosen[0] != rejected[0]:
        raise UnusableRow("pairs_prompt_mismatch", "chosen and rejected differ before their last turn")
    prompt_turns = reader.prompt(record) if reader.find(record, *PROMPT_COLUMNS) else ()
    turn_texts = {message_text(turn).strip() for turn in chosen[0]}
    if prompt_turns and turn_texts and message_text(prompt_turns[-1]).strip() not in turn_texts:
        raise UnusableRow("pairs_prompt_mismatch", "the prompt column is not a turn of chosen and rejected")
    if not prompt_turns and not chosen[0]:
        raise reader.missing("prompt", record, "chosen and rejected are single turns; ")
    if not chosen[1].strip() or not rejected[1].strip():
        raise UnusableRow("pairs_empty_completion", "chosen or rejected is empty")
    if chosen[1:] == rejected[1:]:
        raise UnusableRow("pairs_identical", "chosen and rejected are the same")
    return PairSides(chosen.prompt or prompt_turns, chosen, rejected)


def read_verdict(reader: RowReader, record: RawRow) -> bool:
    """Whether a response is desirable: column ``label``, true or false, 1 or 0."""
    value = reader.need(record, "label")
    text = str(value).strip().lower()
    if text not in ("true", "false", "1", "0", "1.0", "0.0"):
        raise DatasetError(
            f"label {value!r} is neither true nor false",
            where=record.where,
            fix="give true (desirable) or false; map another column with dataset.columns={label: NAME}",
        )
    return text in ("true", "1", "1.0")


def read_demonstration(reader: RowReader, record: RawRow, whole: bool = False) -> Side:
    """(prompt, completion) from a prompt with a completion, a conversation, or a pair's chosen side; ``whole`` up to
    the last answer, learned or not.
    """
    completion = reader.get(record, "completion", "response", "output")
    if completion is None and reader.find(record, "messages", "conversations"):
        side = _split(_learned(reader.prompt(record), whole))
    elif completion is None and reader.find(record, "chosen") and not reader.find(record, "answer"):
        inner = _side(reader, record, reader.need(record, "chosen"), whole)
        side = inner._replace(prompt=inner.prompt or reader.prompt(record))
    else:
        text = completion if completion is not None else reader.need(record, "completion", "answer")
        side = Side((), text) if isinstance(text, str) else _split(_learned(reader.messages(text, record), whole))
        side = side._replace(prompt=(*reader.prompt(record), *side.prompt))
    if not side.text.strip():
        raise UnusableRow("demonstrations_empty", "the completion is empty")
    return side


def read_prompt(reader: RowReader, record: RawRow) -> tuple[tuple[Message, ...], bool]:
    """(conversation up to the policy's turn, whether a final answer was cut off); of a pair the shared turns."""
    if reader.find(record, *PROMPT_COLUMNS) is None and reader.find(record, "chosen"):
        return _side(reader, record, reader.need(record, "chosen"), True)[0] or reader.prompt(record), False
    turns = reader.prompt(record)
    if len(turns) > 1 and turns[-1]["role"] == "assistant":
        return turns[:-1], True
    return turns, False


def _side(reader: RowReader, record: RawRow, value: Any, whole: bool = False) -> Side:
    """One side of a pair: (turns before the last, last turn), up to the last that is learned unless ``whole``."""
    if isinstance(value, str):
        return Side(*transcript(value)) if _START.match(value) and _TURN.search(value) else Side((), value)
    return _split(_learned(reader.messages(value, record), whole))


def _learned(turns: tuple[Message, ...], whole: bool) -> tuple[Message, ...]:
    """Up to the last answer that is learned: OpenAI's ``weight: 0`` says that a turn is only read."""
    if whole or all(turn.get("weight") != 0 for turn in turns):
        return turns
    answers = [n for n, turn in enumerate(turns, 1) if turn["role"] == "assistant" and turn.get("weight") != 0]
    if not answers:
        raise UnusableRow("demonstrations_not_learned", "every answer has weight 0")
    return turns[: answers[-1]]


def _split(turns: tuple[Message, ...]) -> Side:
    if turns[-1]["role"] != "assistant":
        raise UnusableRow("conversation_without_answer", f"the last turn is the {turns[-1]['role']}'s")
    last = turns[-1]
    return Side(turns[:-1], message_text(last), last if last.get("tool_calls") or last.get("reasoning") else None)


def transcript(text: str) -> tuple[tuple[Message, ...], str]:
    r"""Split ``"\n\nHuman: ...\n\nAssistant: ..."`` at its last turn."""
    pieces = _TURN.split("\n\n" + text.lstrip())
    turns = tuple(
        {"role": "user" if speaker == "Human" else "assistant", "content": content.strip()}
        for speaker, content in zip(pieces[1::2], pieces[2::2])
    )
    return _split(turns)[:2]
