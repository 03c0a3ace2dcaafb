"""One dataset of the mixture: its splits, its rows and their places."""

from __future__ import annotations

import random
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from functools import cache
from itertools import repeat
from pathlib import PurePath
from typing import Any

from rlhf_core.data.files import CheckedRows, refuse_row
from rlhf_core.data.held_out import is_held_out, row_key
from rlhf_core.data.jsonl import flaw_of
from rlhf_core.data.schema import RawRow, RowReader
from rlhf_core.data.settings import DatasetSettings, SourceSettings, unfiltered
from rlhf_core.plugins.component import ComponentConfig
from rlhf_core.plugins.component_calls import component_errors, label_for
from rlhf_core.plugins.context import BuildContext
from rlhf_core.plugins.contracts import UNORDERED, check_rows
from rlhf_core.plugins.protocols import DatasetSource
from rlhf_core.plugins.registry import check_component
from rlhf_core.types.errors import DatasetError
from rlhf_core.types.frozen import Lazy
from rlhf_core.types.messages import VARIABLES, Message, content_of, message_text

PLAIN_NAMES = frozenset({"train", "test", "validation", "val", "dev", "data", "dataset", "pairs", "prompts", "main"})
"""Names that do not identify the dataset a file belongs to; its folder's name is better."""


class Source:
    """A dataset component with its settings."""

    def __init__(self, settings: SourceSettings, shared: DatasetSettings, ctx: BuildContext) -> None:
        self.settings, self.shared = settings, shared
        self.label = settings.label or default_label(unfiltered(settings.source))
        check_template(self.label, settings.prompt_template)
        check_pattern(self.label, settings.answer_pattern)
        self.component_label = label_for("dataset", settings.source, ctx.registry)
        with component_errors(self.component_label, "build()"):
            self.component: DatasetSource = settings.source.build(ctx)
        check_component("dataset", self.component, self.component_label)
        self._part_of_file, self._question = (getattr(self.component, m, None) for m in ("row_number", "question"))
        self.reader = RowReader(self.label, settings.columns)
        self._read: dict[tuple[str, str], Lazy[RawRow]] = {}
        self._held_out_flags: dict[str, bytes] = {}
        """Of each row, by kind, of a source that has no held-out split."""
        self._keys: dict[str, array[int]] = {}
        self._files = cache(self._file)

    def records(
        self, kind: str, split: str, counts: Counter[str], heldout_keys: Set[str] | None = None
    ) -> Sequence[RawRow]:
        """Rows of ``train`` or ``heldout``; set aside by ``heldout_by`` where the source has no held-out split. Rows
        beyond ``dataset.limit``, and training rows that are held out elsewhere, are added to ``counts``. Rows of
        ``dataset.heldout`` (``heldout_keys``) take the place of this source's own.
        """
        if heldout_keys is not None:
            every = self._all(kind, "train").only(repeat(split == "train"))
            rows = every.only(self.key(row) not in heldout_keys for row in every)
            counts += Counter({"train_rows_held_out": len(every) - len(rows)})
        elif self._all(kind, "heldout"):
            rows = self._all(kind, split)
        else:
            rows = self._all(kind, "train")
            if kind not in self._held_out_flags:
                self._held_out_flags[kind] = bytes(map(self._held_out, rows))
            rows = rows.only(flag == (split == "heldout") for flag in self._held_out_flags[kind])
        self.reader.check_columns(rows)
        counts += Counter({"rows_left_out_by_where": getattr(self.component, "left_out", lambda _: 0)(split)})
        limit = self.shared.limit
        if limit is not None and len(rows) > limit:
            counts["rows_beyond_limit"] += len(rows) - limit
            rows = rows[:limit]
        return rows

    def all_records(self, kind: str) -> Sequence[RawRow]:
        """Every row: of the source's held-out split if it has one, otherwise of all it has."""
        rows = self._all(kind, "heldout") or self._all(kind, "train")
        self.reader.check_columns(rows)
        return rows

    def _all(self, kind: str, split: str) -> Lazy[RawRow]:
        kind = kind if hasattr(self.component, kind) else "rows"
        if (kind, split) not in self._read:
            read = getattr(self.component, kind)
            with component_errors(self.component_label, f"{kind}({split!r})"):
                answer = read(split)
                as_it_is = isinstance(answer, (CheckedRows, *UNORDERED)) or not isinstance(answer, Iterable)
                rows: Any = answer if as_it_is else list(answer)
            if isinstance(rows, CheckedRows) and not self._part_of_file:
                records = Lazy(lambda n: RawRow(rows[n], n, self.where(split, n), split), range(len(rows)))
            else:
                made = list(self._sound(rows, kind, split))
                records = Lazy(made.__getitem__, range(len(made)))
            self._read[kind, split] = records
        return self._read[kind, split]

    def _sound(self, rows: Any, kind: str, split: str) -> Iterator[RawRow]:
        """The rows without a flaw; their numbers and places are what the component says now."""
        row_number = self._part_of_file or (lambda _, n: n)
        for n, row in enumerate(check_rows(rows, f"{self.component_label}, {kind}({split!r}),")):
            where = self.where(split, n)
            if flaw := flaw_of(row):
                refuse_row(DatasetError(f"{where}: {flaw}", fix="correct or remove the row"))
            else:
                yield RawRow(row, row_number(split, n), where, split)

    def where(self, split: str, number: int) -> str:
        """Place of a row that was read, for messages. Example: ``prompts.jsonl, line 17``"""
        where = getattr(self.component, "where", None)
        if not callable(where):
            return f"dataset '{self.label}', {split} row {number + 1}"
        try:
            return str(where(split, number))
        except (Exception, SystemExit):
            with component_errors(self.component_label, "where()"):  # entered for each row, it would cost more
                raise

    def _held_out(self, record: RawRow) -> bool:
        fraction, by = self.shared.heldout_fraction, self.shared.heldout_by
        row_id = self.reader.get(record, "id")
        if by == "place":
            key = record.number if row_id is None else row_id
            return random.Random(f"{self.label}/{key}").random() < fraction
        own_id = by == "id" and row_id is not None
        return is_held_out(f"id {row_id}" if own_id else self.key(record), fraction)

    def key(self, record: RawRow) -> str:
        """Hash of what a row asks; without the template around it where the component has ``question()``."""
        if self._part_of_file:  # the numbers of a larger file
            return self._key(record)
        keys, number = self._keys.setdefault(record.split, array("Q")), record.number
        if number >= len(keys):
            keys.extend(repeat(0, number + 1 - len(keys)))
        key = keys[number] = keys[number] or int(self._key(record) or "0", 16)
        return f"{key:016x}" if key else ""

    def _key(self, record: RawRow) -> str:
        question_text = None
        if callable(self._question):
            with component_errors(self.component_label, "question()"):
                question_text = str(self._question(record.split, record.number))
        return row_key(self.reader, record, question_text)

    def conversation(self, messages: tuple[Message, ...], record: RawRow) -> tuple[Message, ...]:
        """Apply prompt template and system prompt; a row without a prompt is refused."""
        if not messages or not message_text(messages[-1]).strip():
            raise DatasetError("the prompt is empty", where=record.where, fix="remove or fill that row")
        if self.settings.prompt_template:
            text = self.settings.prompt_template.replace("{prompt}", content_of(messages[-1]))
            messages = (*messages[:-1], {**messages[-1], "content": text})
        if self.shared.system_prompt and messages[0]["role"] != "system":
            messages = ({"role": "system", "content": self.shared.system_prompt}, *messages)
        return with_variables(messages, self.reader, record)

    def name(self, record: RawRow, split: str) -> str:
        """Unique id of a row: ``label/its own id``, or ``label/file/000017``; ``label/split/000017`` where the label
        names the file already or there is none.
        """
        row_id = self.reader.get(record, "id")
        if row_id is not None:
            return f"{self.label}/{row_id}"
        part = split if self.shared.heldout_by == "place" else self._files(record.split) or split
        return f"{self.label}/{part}/{record.number:06d}"

    def _file(self, split: str) -> str:
        """Name of the file or published split of rows; "" where the label, or the other split, has it."""
        options: Mapping[str, Any] = unfiltered(self.settings.source).model_dump()

        def stem(prefix: str) -> str:
            path, published = (options.get(f"{prefix}{key}") for key in ("path", "split"))
            return str(published or PurePath(str(path or "")).name.split(".")[0])

        name = stem("heldout_" if split == "heldout" else "")
        taken = self.label if split == "train" else stem("")
        return "" if name == taken else name

    def own_id(self, name: str) -> str:
        """Undo the label in :meth:`name`."""
        return name.removeprefix(f"{self.label}/")


def default_label(source: ComponentConfig) -> str:
    """Name of a source in ids and metrics: ``gsm8k`` for ``openai/gsm8k`` and for ``data/gsm8k/train.jsonl``."""
    options: Mapping[str, Any] = source.model_dump()
    names = [part.split(".")[0] for part in str(options.get("path", "")).split("/")]
    stem = next((name for name in reversed(names) if name and name not in PLAIN_NAMES), "")
    return stem or "/".join(str(v) for v in (source.name.rpartition("/")[2], options.get("subset")) if v)


def with_variables(messages: tuple[Message, ...], reader: RowReader, record: RawRow) -> tuple[Message, ...]:
    """The first message with the row's variables of the chat template; a table fills those of other rows with nulls."""
    value = {} if (given := reader.get(record, VARIABLES)) is None else given
    row = {k: v for k, v in value.items() if v is not None} if isinstance(value, Mapping) else {"": None}
    if not all(isinstance(v, bool | int | float | str) for v in row.values()):
        why, fix = f"got {str(value)[:80]}", 'write an object such as {"enable_thinking": false}'
        raise DatasetError(f"{VARIABLES} are not texts, numbers, true or false", where=record.where, why=why, fix=fix)
    return ({**messages[0], VARIABLES: row}, *messages[1:]) if row and messages else messages


def check_template(label: str, template: str | None) -> None:
    """Refuse a template that would give every row the same prompt."""
    if template is not None and "{prompt}" not in template:
        what, fix = f"prompt_template of '{label}' has no {{prompt}}", "put {prompt} where the text goes, for example"
        raise DatasetError(what, why=f"it is {template[:80]!r}", fix=fix + ' "Q: {prompt}\\nA:"')


def check_pattern(label: str, pattern: str | None) -> None:
    """Refuse a pattern that cannot yield an answer."""
    if pattern is None:
        return
    try:
        groups = re.compile(pattern).groups
    except re.error as error:
        what = f"answer_pattern of '{label}' is not a regular expression"
        raise DatasetError(what, why=f"{pattern!r}: {error}", fix="for GSM8K: '#### (.+)'") from error
    if not groups:
        what, fix = f"answer_pattern of '{label}' has no group", "put the answer in brackets, for example '#### (.+)'"
        raise DatasetError(what, why=f"it is {pattern!r}", fix=fix)
