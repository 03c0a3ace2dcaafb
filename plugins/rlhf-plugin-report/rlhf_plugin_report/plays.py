"""Plays of benchmarks for agents, as the page shows them beside the completions: `plays.jsonl` of the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rlhf_plugin_report.rows import is_number
from rlhf_plugin_report.turns import is_turn, turns_of

Row = Mapping[str, Any]
KEY = ("benchmark", "agent", "task", "trial")


def plays_of(rows: Sequence[Row]) -> tuple[list[Row], str]:
    """The plays of each benchmark's first and latest evaluation (a repeated row's last), and what was left out."""
    latest = {tuple(str(row.get(k)) for k in ("policy_version", *KEY)): row for row in rows if _is_complete(row)}
    plays = list(latest.values())
    versions: dict[str, set[int]] = {}
    for row in plays:
        versions.setdefault(str(row["benchmark"]), set()).add(row["policy_version"])
    ends = {name: (min(of_name), max(of_name)) for name, of_name in versions.items()}
    shown = [r for r in plays if r["policy_version"] in ends[str(r["benchmark"])]]
    left = len(plays) - len(shown)
    note = f"{left} plays of benchmarks between their first and latest evaluation are in plays.jsonl alone"
    return [_play(row) for row in shown], note if left else ""


def _is_complete(row: Row) -> bool:
    version, messages = row.get("policy_version"), row.get("messages")
    named = all(isinstance(row.get(k), str) for k in ("benchmark", "task"))
    return named and isinstance(version, int) and version >= 0 and isinstance(messages, list)


def _play(row: Row) -> Row:
    name = f"{row['benchmark']}/{row['task']}"
    parts = {k: row[k] for k in ("value", "process", "calls", "seconds") if is_number(row.get(k))}
    shown = {
        "step": row["policy_version"], "id": name, "prompt": "", "place": row.get("trial", 0), "play": row["benchmark"],
        "tokens": row["tokens"] if is_number(row.get("tokens")) else 0, "text": str(row.get("answer", "")),
        "detail": str(row.get("detail") or ""), "finish_reason": str(row.get("stop_reason", "")), "parts": parts,
        "scores": [], "turns": turns_of(list(_turns(row["messages"]))),
    }  # fmt: skip
    return {**shown, **({"score": row["value"]} if "value" in parts else {"status": "missing"})}


def _turns(messages: Sequence[Any]) -> Iterator[Row]:
    for message in messages:
        turn = {"span": [0, 0], "role": message.get("role") if isinstance(message, Mapping) else None}
        turn["message"] = message
        if is_turn(turn):
            yield turn
