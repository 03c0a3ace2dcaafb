"""The transcripts of an evaluation as one HTML file: messages, calls, results, errors, verdicts; nothing is fetched."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from rlhf_core.data import write_text

MOST = 500
"""Transcripts of a page; those without a right answer come first if there are more."""
MOST_TEXT = 8000
"""Characters of a message; ``rows.jsonl`` has them all."""
CONTROL = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u200b\\u202a-\\u202e\\u2066-\\u2069\\ufeff\\ud800-\\udfff]")
STYLE = """body{font:15px/1.45 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;color:#222}
table{border-collapse:collapse}td,th{padding:.15rem .7rem .15rem 0;text-align:left}
details{border-left:4px solid #999;padding:.2rem .8rem;margin:.5rem 0}details.right{border-color:#2a7d46}
details.wrong{border-color:#b3362c}summary{cursor:pointer}
.message{margin:.5rem 0;padding:.3rem .6rem;background:#f4f4f2}
.message.assistant{background:#eaf1fb}.message.error{background:#fbeae8}.who{font-weight:600}
pre{white-space:pre-wrap;overflow-wrap:anywhere;margin:.2rem 0;font:13px/1.4 ui-monospace,monospace}
@media(prefers-color-scheme:dark){body{background:#181818;color:#ddd}.message{background:#262626}
.message.assistant{background:#1d2a3d}.message.error{background:#3d211e}}"""
Row = Mapping[str, Any]


def write_page(folder: Path, settings: Mapping[str, Any], report: Mapping[str, Any], rows: Sequence[Row]) -> Path:
    path = folder / "report.html"
    write_text(path, page(settings, report, rows))
    return path


def page(settings: Mapping[str, Any], report: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """The whole page. What models, tools and data say is text, whatever it holds."""
    title = ", ".join(str(settings[k]["name"]) for k in ("suite", "agent", "backend"))
    shown = list(rows) if len(rows) <= MOST else sorted(rows, key=lambda r: bool(r["right"]))[:MOST]
    left_out = f"<p>{len(rows) - len(shown)} more are in rows.jsonl.</p>" if len(shown) < len(rows) else ""
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f'<meta name="viewport" content="width=device-width"><title>{_text(title)}</title><style>{STYLE}</style>'
        f"<h1>{_text(title)}</h1>{_table(report)}<h2>Transcripts</h2>{left_out}"
        f"{''.join(map(_transcript, shown))}</html>\n"
    )


def _table(report: Mapping[str, Any]) -> str:
    parts = {"all": report, **report["categories"]}
    head = "".join(f"<th>{name}</th>" for name in ("", "tasks", "right", "process", "calls", "missing", "stopped by"))
    return f"<table><tr>{head}</tr>{''.join(_line(name, part) for name, part in parts.items())}</table>"


def _line(name: str, part: Mapping[str, Any]) -> str:
    stops = ", ".join(f"{reason} {count}" for reason, count in part["stop_reasons"].items())
    right = _number(part["right"]["value"])
    cells = (name, part["tasks"], right, _number(part["process"]), _number(part["calls"]), part["missing"], stops)
    return f"<tr>{''.join(f'<td>{_text(str(cell))}</td>' for cell in cells)}</tr>"


def _transcript(row: Row) -> str:
    verdict = "missing" if row["value"] is None else "right" if row["right"] else "wrong"
    facts = [
        f"{row['task']}" + (f", trial {row['trial'] + 1}" if row["trial"] else ""),
        verdict,
        f"value {_number(row['value'])}",
        f"process {_number(row['process'])}",
        f"{row['calls']} calls",
        f"{row['prompt_tokens'] + row['completion_tokens']} tokens",
        f"{row['cost_usd']:.4f} USD",
        f"{row['seconds']:.2f} s",
        f"stopped by {row['stop_reason']}",
    ]
    trajectory = row["trajectory"]
    notes_of_row = [f"Answer: {row['answer']}", row["detail"], trajectory.get("error") or ""]
    notes = "".join(f"<p>{_text(line)}</p>" for line in dict.fromkeys(notes_of_row) if line)
    return (
        f'<details class="{verdict}"><summary>{_text(" · ".join(facts))}</summary>{notes}'
        f"{''.join(_messages(trajectory))}</details>"
    )


def _messages(trajectory: Mapping[str, Any]) -> Iterable[str]:
    made = {str(c["id"]): c for c in trajectory["calls"] if c["id"]}
    broken = {str(e["id"]): str(e["error"]) for turn in trajectory["turns"] for e in turn.get("errors") or ()}
    for message in trajectory["messages"]:
        role = str(message.get("role"))
        call = made.get(str(message.get("tool_call_id") or ""))
        failed = call is not None and call["status"] != "ok"
        who = f"{role} {message.get('name') or ''}".strip() + (f" · {call['seconds']:.2f} s" if call else "")
        calls = [c["function"] for c in message.get("tool_calls") or ()]
        lines = [f"{c['name']} {json.dumps(c['arguments'], ensure_ascii=False)}" for c in calls]
        kind = f"message {'assistant' if role == 'assistant' else ''} {'error' if failed else ''}".strip()
        fault = broken.get(str(message.get("tool_call_id") or ""), "")
        yield (
            f'<div class="{kind}"><span class="who">{_text(who)}{" · error" if failed else ""}</span>'
            + (f"<pre>{_text(str(message.get('reasoning')))}</pre>" if message.get("reasoning") else "")
            + (f"<pre>{_text(str(message.get('content') or ''))}</pre>" if message.get("content") else "")
            + "".join(f"<pre>call: {_text(line)}</pre>" for line in lines)
            + (f"<pre>{_text(fault)}</pre>" if fault and fault not in str(message.get("content")) else "")
            + "</div>"
        )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _text(text: str) -> str:
    """Escaped; characters that control terminals or reverse what follows are shown as such, long texts are cut."""
    more = len(text) - MOST_TEXT
    cut = text if more <= 0 else f"{text[:MOST_TEXT]} … ({more} more characters in rows.jsonl)"
    return escape(CONTROL.sub(lambda match: f"⟨U+{ord(match[0]):04X}⟩", cut))
