"""Rows of any shape to prompts, pairs and demonstrations. Every refusal names file and row."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_core.errors import DatasetError, did_you_mean
from rlhf_core.types import Message

Row = Mapping[str, Any]
_TURN = re.compile(r"\n\n(Human|Assistant):")
_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system", "tool": "tool"}


class Reader:
    """Reads columns of one source's rows under our names.

    Args:
        label: the source's name, for messages.
        columns: our column -> the file's.
    """

    def __init__(self, label: str, columns: Mapping[str, str]) -> None:
        self.label, self.columns = label, dict(columns)

    def check_columns(self, rows: Sequence[Row]) -> None:
        """Refuse mapped columns that the first row lacks.

        Raises:
            DatasetError: names the column, what there is, and the nearest.
        """
        for ours, theirs in self.columns.items():
            if rows and theirs not in rows[0]:
                raise self.missing(theirs, rows[0], f"columns maps '{ours}' to it")

    def missing(self, column: str, row: Row, why: str = "") -> DatasetError:
        """The error for a column that is not there."""
        known = sorted(row)
        return DatasetError(f"dataset '{self.label}' has no column '{column}'", why=why or f"its columns: {', '.join(known)}",
                            fix=did_you_mean(column, known) or f"map it: dataset.columns={{{column}: NAME}}, NAME one of {known}")

    def get(self, row: Row, column: str, *others: str) -> Any:
        """Value of the first of our columns that the row has, None if none."""
        for name in (column, *others):
            theirs = self.columns.get(name, name)
            if theirs in row:
                return row[theirs]
        return None

    def need(self, row: Row, number: int, column: str, *others: str) -> Any:
        """Like :meth:`get`, but absence or emptiness is an error naming the row."""
        value = self.get(row, column, *others)
        if value is None:
            raise self.missing(self.columns.get(column, column), row)
        if isinstance(value, (str, list)) and not (value.strip() if isinstance(value, str) else value):
            raise DatasetError(f"dataset '{self.label}', row {number + 1}: '{column}' is empty", fix="remove or fill that row")
        return value

    def text_or_messages(self, row: Row, number: int, *columns: str) -> tuple[Message, ...]:
        """A prompt given as text or as a list of turns."""
        value = self.need(row, number, *columns)
        if isinstance(value, str):
            return ({"role": "user", "content": value},)
        return self.messages(value, number)

    def messages(self, turns: Any, number: int) -> tuple[Message, ...]:
        """Normalise OpenAI and ShareGPT turns."""
        rows: list[Message] = []
        for turn in turns if isinstance(turns, (list, tuple)) else [turns]:
            role = _ROLES.get(str(turn.get("role", turn.get("from", ""))).lower()) if isinstance(turn, Mapping) else None
            content = turn.get("content", turn.get("value")) if isinstance(turn, Mapping) else None
            if role is None or not isinstance(content, str):
                raise DatasetError(f"dataset '{self.label}', row {number + 1}: a turn is not {{role, content}}", why=f"got {str(turn)[:80]}")
            rows.append({"role": role, "content": content})
        return tuple(rows)

    def answer(self, row: Row, number: int, pattern: str | None) -> str | None:
        """Reference answer, cut out by ``pattern`` when given.

        Raises:
            DatasetError: the pattern does not match.
        """
        value = self.get(row, "answer")
        if value is None:
            return None
        if pattern is None:
            return str(value)
        match = re.search(pattern, str(value), re.DOTALL)
        if match is None:
            raise DatasetError(f"dataset '{self.label}', row {number + 1}: answer_pattern {pattern!r} does not match",
                               why=f"answer: {str(value)[-60:]!r}")
        return match.group(1).strip()

    def pair(self, row: Row, number: int) -> tuple[tuple[Message, ...], str, str]:
        """(prompt, chosen, rejected) from text columns, whole conversations, or Human/Assistant transcripts.

        Raises:
            DatasetError: the two conversations do not share their prompt.
        """
        chosen, rejected = self.need(row, number, "chosen"), self.need(row, number, "rejected")
        given = self.get(row, "prompt", "conversations", "question")
        sides = [self._side(value, number) for value in (chosen, rejected)]
        prompts = [p for p, _ in sides]
        if given is not None and not any(prompts):
            prompt = self.text_or_messages(row, number, "prompt", "conversations", "question")
        elif prompts[0] == prompts[1] and prompts[0]:
            prompt = prompts[0]
        else:
            raise DatasetError(f"dataset '{self.label}', row {number + 1}: chosen and rejected do not share their prompt",
                               fix="give a prompt column, or conversations that differ only in the last turn")
        return prompt, sides[0][1], sides[1][1]

    def _side(self, value: Any, number: int) -> tuple[tuple[Message, ...], str]:
        if isinstance(value, str):
            return transcript(value) if _TURN.search(value) else ((), value)
        turns = self.messages(value, number)
        return turns[:-1], turns[-1]["content"]


def transcript(text: str) -> tuple[tuple[Message, ...], str]:
    """Split ``"\\n\\nHuman: ...\\n\\nAssistant: ..."`` at its last assistant turn."""
    pieces = _TURN.split(text)
    turns: list[Message] = [{"role": "user" if who == "Human" else "assistant", "content": what.strip()}
                            for who, what in zip(pieces[1::2], pieces[2::2])]
    last = max((i for i, t in enumerate(turns) if t["role"] == "assistant"), default=-1)
    return (tuple(turns[:last]), turns[last]["content"]) if last >= 0 else ((), text)
