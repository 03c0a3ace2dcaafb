"""Rows of the published file as the trainer reads them."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_core.data import read_rows

HELD_OUT = 0.2
Row = dict[str, Any]
"""``id`` (``DIALOGUE:NUMBER``), ``prompt``, ``steps`` (the turn) and ``labels``."""


def read_turns(file: Path) -> list[Row]:
    rows: list[Row] = []
    for number, row in enumerate(read_rows(str(file)).rows):
        turns = json.loads(row["context"])
        words = next((t["text"] for t in turns if t["role"] == "user"), "")
        name = re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-") or "nothing-said"
        turn = spoken(json.loads(row["generation"]))[1]
        if turn.strip():
            row_of_turn = {"prompt": conversation(turns), "steps": [turn], "labels": [bool(row["reward"])]}
            rows.append({"id": f"{name}:{number:04d}", **row_of_turn})
    return rows


def spoken(turn: Mapping[str, Any]) -> tuple[str, str]:
    if "response" in turn:
        return "user", f"RESULT {json.dumps(turn['response'])}"
    if "api" in turn:
        return "assistant", f"CALL {json.dumps(turn['api'])}"
    return ("assistant" if turn["role"] == "agent" else "user"), " ".join(str(turn["text"]).split())


def conversation(turns: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """What was said before, the two sides in turns; a user begins."""
    messages: list[dict[str, str]] = [{"role": "user", "content": "(the customer comes in)"}]
    for role, text in map(spoken, turns):
        if messages[-1]["role"] == role:
            messages[-1]["content"] += f"\n{text}"
        else:
            messages.append({"role": role, "content": text})
    if messages[-1]["role"] == "assistant":
        messages.append({"role": "user", "content": "(waits)"})
    return messages


def dialogue(row: Row) -> str:
    return row["id"].rpartition(":")[0]


def is_call(row: Row) -> bool:
    return row["steps"][0].startswith("CALL")


def split(rows: Sequence[Row], seed: int) -> tuple[list[Row], list[Row]]:
    names = sorted({dialogue(row) for row in rows})
    random.Random(f"taskmaster/{seed}").shuffle(names)
    held_out = set(names[: round(HELD_OUT * len(names))])
    return [r for r in rows if dialogue(r) not in held_out], [r for r in rows if dialogue(r) in held_out]


def fewer(rows: Sequence[Row], count: int | None, seed: int) -> list[Row]:
    """So many rows, the wrong ones first; shuffled."""
    rng, rows = random.Random(f"taskmaster/rows/{seed}"), list(rows)
    rng.shuffle(rows)
    if count is not None:
        rows = sorted(rows, key=lambda row: row["labels"][0])[:count]
        rng.shuffle(rows)
    return rows
