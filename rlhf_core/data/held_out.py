"""Which rows are held out: decided by what a row asks, not by the file or the line that it stands in."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from unicodedata import normalize

from rlhf_core.data.conversations import read_prompt
from rlhf_core.data.jsonl import read_record, record_of_run
from rlhf_core.data.schema import RawRow, RowReader, UnusableRow
from rlhf_core.types.errors import DatasetError, error_text
from rlhf_core.types.messages import message_text
from rlhf_core.types.rollouts import Message


def content_key(turns: Sequence[Message]) -> str:
    """Hash of what is asked (16 hex digits): roles and texts but for system turns; blanks and accents in one form."""
    turns_kept = [turn for turn in turns if turn["role"] != "system"]
    turn_texts = [[turn["role"], " ".join(normalize("NFC", message_text(turn)).split())] for turn in turns_kept]
    return hashlib.sha256(json.dumps(turn_texts).encode()).hexdigest()[:16]


def row_key(reader: RowReader, row: RawRow, question: str | None = None) -> str:
    """:func:`content_key` of a row's prompt, in whatever form the row has it; "" for a row without a prompt."""
    if question is not None:
        return content_key([{"role": "user", "content": question}])
    try:
        return content_key(read_prompt(reader, row)[0])
    except (DatasetError, UnusableRow):
        return ""


def is_held_out(key: str, fraction: float) -> bool:
    """Whether a row of this key is among the held-out ``fraction``; a larger one holds out the same rows and more."""
    if not key:
        return False
    digest = hashlib.sha256(f"held out/{key}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < fraction * 2**64


log = logging.getLogger("rlhf")
FILE = "rows.json"
_PARENTS = 4
"""A model lies in ``RUN/final`` or ``RUN/checkpoints/STEP/model``."""


@dataclass(frozen=True)
class RunRows:
    """Hashes of what a run's rows ask."""

    run: Path
    train: frozenset[str]
    heldout: frozenset[str]


def read_rows(run: Path) -> RunRows | None:
    """What a run has kept; None where it has not read its data yet."""
    file = run / FILE
    if not file.is_file():
        return None
    rows = read_record(file)
    with record_of_run(file):
        return RunRows(run, frozenset(rows["train"]), frozenset(rows["heldout"]))


def ancestors(model: str) -> list[RunRows]:
    """The runs that a model comes from, latest first: the one it lies in, that one's base model's, and so on."""
    runs: list[RunRows] = []
    seen: set[Path] = set()
    while (run := _run_of(model)) is not None and run not in seen:
        seen.add(run)
        try:
            rows = read_rows(run)
            model = str(read_record(run / "plan.json")["config"]["model"]["path"])
        except (ValueError, KeyError, TypeError) as error:
            log.warning("what '%s' was trained on is not known: %s", run, error_text(error))
            return runs
        if rows is not None:
            runs.append(rows)
    return runs


def _run_of(model: str) -> Path | None:
    path = Path(model).expanduser()
    folders = [path, *path.absolute().parents[:_PARENTS]] if path.exists() else []
    return next((f.absolute() for f in folders if (f / "plan.json").is_file()), None)


def trained_on(model: str, hashes: Collection[str]) -> tuple[int, str]:
    """How many of these rows a model has seen in training, and a warning that says so; (0, "") if none."""
    runs, rows = ancestors(model), set(hashes)
    by_run = {r.run: len(rows & r.train) for r in runs if rows & r.train}
    count = len(rows & frozenset[str]().union(*(r.train for r in runs)))
    if not count:
        return 0, ""
    names = ", ".join(f"{run} ({n})" for run, n in by_run.items())
    return count, f"the model was trained on {count} of the {len(rows)} rows that it is tested on, by {names}"
