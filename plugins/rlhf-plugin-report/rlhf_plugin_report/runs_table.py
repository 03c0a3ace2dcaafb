"""The table of `rlhf runs list`: as many columns as the terminal has room for."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_core.cli import say, table

Row = Mapping[str, Any]
NARROW = ("run", "started", "status", "algo", "steps", "reward", "loss")
"""What every table has; ``reward`` and ``loss`` are those of the last step."""
MORE = ("model", "dataset", "scored by", "seed")
"""Further columns, each shown if it fits."""
SHRINK = (("run", 20), ("algo", 8), ("run", 12), ("status", 6))
"""Columns that are cut where a table is too wide, and to how many characters at the least."""
KEYS = {"name": "run", "reward": "last_reward", "loss": "last_loss"}
"""Where a column or an order is called otherwise than in a row."""


def sorted_rows(rows: Sequence[Row], order: str, *, reverse: bool) -> list[Row]:
    """Rows by a column; those without a value last, equals by name."""
    key = KEYS.get(order, order)
    having = sorted((r for r in rows if r.get(key) not in (None, "")), key=lambda r: r["run"])
    having = sorted(having, key=lambda r: r[key], reverse=reverse)
    return [*having, *(r for r in rows if r.get(key) in (None, ""))]


def print_runs(rows: Sequence[Row], width: int | None = None) -> None:
    room = width or shutil.get_terminal_size((80, 24)).columns
    cells = [_cells(row) for row in rows]
    columns = [c for c in NARROW if c not in ("reward", "loss") or any(cell[c] for cell in cells)]
    for more in MORE:
        if _width([*columns, more], cells) <= room and any(cell[more] for cell in cells):
            columns.append(more)
    for column, least in SHRINK:
        over = _width(columns, cells) - room
        if over > 0:
            longest = max(len(column), *(len(cell[column]) for cell in cells))
            width = max(least, longest - over)
            short = [t if len(t) <= width else t[: width - 3] + "..." for t in (cell[column] for cell in cells)]
            cells = [{**cell, column: text} for cell, text in zip(cells, short)]
    table(columns, [[cell[c] for c in columns] for cell in cells])
    if any(cell["status"].startswith("damaged") for cell in cells):
        say("what is damaged: rlhf runs show RUN")


def _width(columns: Sequence[str], cells: Sequence[Mapping[str, str]]) -> int:
    return sum(max(len(c), *(len(cell[c]) for cell in cells)) for c in columns) + 2 * (len(columns) - 1)


def _cells(row: Row) -> dict[str, str]:
    values = {column: row.get(KEYS.get(column, column)) for column in (*NARROW, *MORE)}
    date = str(row["started"])
    this_year = date.startswith(time.strftime("%Y"))
    return {
        **{column: _text(value) for column, value in values.items()},
        "run": Path(row["run"]).name,
        "started": date[5:] if this_year else date[:10],
        "scored by": str(row.get("reward") or ""),
    }


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.3f}" if isinstance(value, float) else str(value)
