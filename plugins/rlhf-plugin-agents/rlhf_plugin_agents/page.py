"""The transcripts of an evaluation as one HTML file: messages, calls, results, errors, verdicts; nothing is fetched."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from rlhf_core.data import write_text

MOST = 500
"""Transcripts of a page; those without a right answer come first if there are more."""
MOST_TEXT = 8000
"""Characters of a message; ``rows.jsonl`` has them all."""
CONTROL = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u200b\\u202a-\\u202e\\u2066-\\u2069\\ufeff\\ud800-\\udfff]")
Row = Mapping[str, Any]


def write_page(folder: Path, settings: Mapping[str, Any], report: Mapping[str, Any], rows: Sequence[Row]) -> None:
    write_text(folder / "report.html", page(settings, report, rows))


def page(settings: Mapping[str, Any], report: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """The whole page. What models, tools and data say is text, whatever it holds."""
    shown = list(rows) if len(rows) <= MOST else sorted(rows, key=lambda r: bool(r["right"]))[:MOST]
    loader = PackageLoader("rlhf_plugin_agents")
    template = Environment(loader=loader, autoescape=True, trim_blocks=True, finalize=_text).get_template(
        "transcripts.html", globals={"notes": _notes, "messages": _messages}
    )
    title = ", ".join(str(settings[k]["name"]) for k in ("suite", "agent", "backend"))
    parts = {"all": report, **report["categories"]}
    return template.render(title=title, parts=parts, rows=shown, left_out=len(rows) - len(shown))


def _notes(row: Row) -> list[str]:
    notes = [f"Answer: {row['answer']}", row["detail"], row["trajectory"].get("error") or ""]
    return [line for line in dict.fromkeys(notes) if line]


def _messages(trajectory: Mapping[str, Any]) -> Iterable[tuple[str, str, list[str]]]:
    """CSS classes, who speaks, and texts of each message."""
    made = {str(c["id"]): c for c in trajectory["calls"] if c["id"]}
    broken = {str(e["id"]): str(e["error"]) for turn in trajectory["turns"] for e in turn.get("errors") or ()}
    for message in trajectory["messages"]:
        role, answered = str(message.get("role")), str(message.get("tool_call_id") or "")
        call = made.get(answered)
        failed = call is not None and call["status"] != "ok"
        who = f"{role} {message.get('name') or ''}".strip() + (f" · {call['seconds']:.2f} s" if call else "")
        texts = [str(message[k]) for k in ("reasoning", "content") if message.get(k)]
        calls = [c["function"] for c in message.get("tool_calls") or ()]
        texts += [f"call: {c['name']} {json.dumps(c['arguments'], ensure_ascii=False)}" for c in calls]
        fault = broken.get(answered, "")
        texts += [fault] if fault and fault not in str(message.get("content")) else []
        kind = f"message {'assistant' if role == 'assistant' else ''} {'error' if failed else ''}".strip()
        yield kind, who + (" · error" if failed else ""), texts


def _text(value: Any) -> Markup:
    """Escaped; characters that control terminals or reverse what follows are shown as such, long texts are cut."""
    if isinstance(value, Markup):
        return value
    text = str(value)
    more = len(text) - MOST_TEXT
    cut = text if more <= 0 else f"{text[:MOST_TEXT]} … ({more} more characters in rows.jsonl)"
    return Markup(escape(CONTROL.sub(lambda match: f"⟨U+{ord(match[0]):04X}⟩", cut)))
