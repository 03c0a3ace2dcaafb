"""Rows that hold completions, to be scored: several of one prompt, cut at stop strings, as an evaluation wrote them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from rlhf_core.data.conversations import read_demonstration
from rlhf_core.data.datasets import Datasets
from rlhf_core.data.files import read_rows
from rlhf_core.data.schema import RawRow, RowReader, UnusableRow
from rlhf_core.data.settings import DatasetSettings
from rlhf_core.data.source import with_variables
from rlhf_core.plugins.component import ComponentConfig
from rlhf_core.plugins.context import BuildContext
from rlhf_core.plugins.contracts import score_samples
from rlhf_core.types.errors import DatasetError, error_text
from rlhf_core.types.messages import Turn, TurnStatus, final_text
from rlhf_core.types.rollouts import LARGEST_SCORE, Media, Prompt, Sample, Score, ScoreStatus

COMPLETION_COLUMNS = ("completion", "response", "output", "messages", "conversations", "chosen")
"""Where a completion is looked for."""


class Completions(NamedTuple):
    """The rows of a file, the same as samples, and where each stands."""

    rows: list[dict[str, Any]]
    samples: list[Sample]
    positions: list[str]

    def cut_at(self, stop: Sequence[str], *, keep: bool = False) -> Completions:
        """The same as if sampling had ended at the first of these strings, which ``keep`` leaves at the end."""
        rows, samples = list(self.rows), list(self.samples)
        for i, sample in enumerate(samples):
            cut = min(((at, s) for s in stop if (at := sample.completion.find(s)) >= 0), default=None)
            if cut is None:
                continue
            text = sample.completion[: cut[0] + len(cut[1]) * keep]
            samples[i] = replace(sample, completion=text)
            column = "completion" if "completion" in rows[i] else "response"
            rows[i] = {**rows[i], column: text, "stop": cut[1]}
        return Completions(rows, samples, self.positions)

    def score(self, reward: ComponentConfig, ctx: BuildContext) -> Sequence[Score]:
        """Scores of the samples, by a reward that sees their prompts as the data set; ``ctx`` is of their file."""
        ctx = ctx.with_(datasets=SampledPrompts(ctx.config.dataset, ctx, self))
        reward.preflight(ctx)
        with ctx.open("reward", reward) as opened:
            return score_samples(opened, self.samples, f"reward '{reward.name}'")


def read_completions(file: str) -> Completions:
    """Read rows with a prompt and a completion; rows of one ``id`` are completions of one prompt.

    Further columns, and what a column ``meta`` holds, go to the sample's prompt. ``audio`` names the completion's
    sound, relative to the file; ``completion`` may be missing then. Of an episode that `rlhf generate --env` wrote,
    ``turns`` are the sample's trajectory, and ``score`` with ``status`` is its environment's.

    Raises:
        DatasetError: missing or empty file, a row without prompt or completion, or one id for two prompts.
    """
    reader, records = read_rows(file).records(file)
    positions = [record.where for record in records]
    samples = [replace(_sample(reader, r), media=sounds(r, "audio", file)) for r in records]
    first: dict[str, int] = {}
    for i, sample in enumerate(samples):
        earlier = first.setdefault(sample.prompt.id, i)
        if samples[earlier].prompt.messages != sample.prompt.messages:
            raise DatasetError(
                f"id '{sample.prompt.id}' occurs twice, for two prompts",
                where=f"{positions[earlier]} and {positions[i]}",
                fix="rows of one id are completions of one prompt: correct the ids",
            )
    return Completions([dict(record.row) for record in records], samples, positions)


class SampledPrompts(Datasets):
    """The prompts of completions, each once, as the rows of a run's data set."""

    def __init__(self, settings: DatasetSettings, ctx: BuildContext, completions: Completions) -> None:
        super().__init__(settings, ctx)
        self._prompts = {s.prompt.id: s.prompt for s in reversed(completions.samples)}
        self._where = {s.prompt.id: p for s, p in zip(reversed(completions.samples), reversed(completions.positions))}

    def prompts(self, split: str) -> list[Prompt]:
        """All of them, in the split ``train``."""
        return list(reversed(self._prompts.values())) if split == "train" else []

    def where(self, name: str) -> str:
        """File and line of a prompt's first completion."""
        return self._where.get(name, name)


def sounds(record: RawRow, column: str, file: str) -> tuple[Media, ...]:
    """The sound file that a column names, relative to the file of rows; none where it is absent, null or empty. A file
    that is not there costs its row's score, as a damaged one does: the reward says so."""
    value = record.row.get(column)
    if value is None or value == "":
        return ()
    if not isinstance(value, str):
        raise DatasetError(
            f"column '{column}' names no file",
            where=record.where,
            why=f"got {value!r:.80}",
            fix=f'{{"{column}": "clips/a.flac"}}, relative to the file of rows',
        )
    path = Path(file).parent / Path(value).expanduser()
    return (Media("audio", path=str(path.absolute())),)


def _sample(reader: RowReader, record: RawRow) -> Sample:
    completion = reader.get(record, "completion", "response")
    if completion is None and "audio" in record.row:
        completion = ""  # the sound is the completion
    elif reader.find(record, *COMPLETION_COLUMNS) is None:
        # as a demonstration its reference answer would be the completion, and right
        if not {"completion", "response"} & set(record.row):
            raise reader.missing("completion", record)
        raise DatasetError("the completion is null", where=record.where, fix='fill it ("" is an empty one)')
    try:
        plain = isinstance(completion, str)
        prompt, text = (reader.prompt(record), completion) if plain else read_demonstration(reader, record, True)[:2]
    except UnusableRow as error:
        raise DatasetError(str(error), where=record.where, fix="each row needs a prompt and a completion") from error
    name = str(record.row.get("id", f"row {record.number + 1}"))
    source = str(record.row.get("source", reader.label))
    turns = turns_of(record)
    columns, _ = reader.rest(record, "completion", "response", "audio", *(("turns",) if turns else ()))
    meta = {**columns, **of_prompt} if isinstance(of_prompt := columns.get("meta"), Mapping) else columns
    prompt = with_variables(prompt, reader, record)
    sample_prompt = Prompt(name, prompt, reader.answer(record, None), source, meta, tools=reader.tools(record))
    environment = environment_score(record) if turns else None
    return Sample(sample_prompt, final_text(turns) if turns else text, trajectory=turns, environment=environment)


def turns_of(record: RawRow) -> tuple[Turn, ...]:
    """The turns of an episode, as the trace and `rlhf generate --env` write them; none of any other ``turns``."""
    rows: Any = record.row.get("turns")
    listed = isinstance(rows, Sequence) and rows
    if not listed or not all(isinstance(row, Mapping) and "span" in row for row in rows):
        return ()
    try:
        return tuple(
            Turn(
                (int(row["span"][0]), int(row["span"][1])),
                str(row["role"]),
                {"content": "", **row["message"]},
                row.get("score"),
                TurnStatus(row.get("status", "ok")),
                float(row.get("seconds", 0.0)),
            )
            for row in rows
        )
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise DatasetError(
            "column 'turns' does not hold the turns of an episode",
            where=record.where,
            why=error_text(error),
            fix='each is {"span": [0, 9], "role": "assistant", "message": {...}}, as `rlhf generate --env` writes it',
        ) from error


def environment_score(record: RawRow) -> Score | None:
    """The environment's own score of an episode; None where the row has none. It is in ``score``, or in ``value`` as
    `rlhf eval episodes` writes it, where ``parts`` has the outcome without the turns' scores.
    """
    row, status = record.row, record.row.get("status")
    if status not in set(ScoreStatus):
        return None
    column = "value" if row.get("score") is None else "score"
    value, parts = row.get(column), row.get("parts")
    if column == "value" and isinstance(parts, Mapping):
        value = parts.get("outcome", value)
    known_status, detail = ScoreStatus(status), str(row.get("detail") or "")
    if known_status is not ScoreStatus.OK:
        return Score.failed(known_status, detail)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= LARGEST_SCORE:
        raise DatasetError(
            f"column '{column}' holds no finite number within +-{LARGEST_SCORE:g}",
            where=record.where,
            why=f"status is 'ok', got {value!r:.80}",
            fix="write the environment's score there, or another status, such as missing",
        )
    return Score(float(value), {}, known_status, detail)
