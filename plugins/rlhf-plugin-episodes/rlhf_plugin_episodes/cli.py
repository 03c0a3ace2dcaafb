"""`rlhf data demonstrations`: what supervised training would imitate, as a file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import click

from rlhf_core.cli import context_of, open_registry
from rlhf_core.config import ConfigError
from rlhf_core.data import Message, Tool
from rlhf_core.data.conversations import openai_row
from rlhf_core.types.messages import calls_of, content_of

FROM = {"user": "human", "assistant": "gpt", "system": "system", "tool": "observation"}
"""Our roles -> ShareGPT's."""


def to_row(
    messages: Sequence[Message], tools: Sequence[Tool] = (), form: Literal["openai", "sharegpt", "hermes"] = "openai"
) -> dict[str, Any]:
    """A row that reads back as the same conversation with the same tools. ShareGPT and Hermes have no place for the ids
    of calls, and ShareGPT none for text beside a call, which becomes a turn; reasoning stands between ``<think>``
    tags."""
    row = openai_row(messages, tools)
    if form == "openai":
        return row
    offered = {"tools": json.dumps(row["tools"], ensure_ascii=False)} if tools else {}
    turns = [turn for m in messages for turn in (_hermes(m) if form == "hermes" else _sharegpt(m))]
    return {"conversations": turns, **offered}


def _call_rows(message: Message) -> list[str]:
    functions = ({"name": call.name, "arguments": call.arguments} for call in calls_of(message))
    return [json.dumps(function, ensure_ascii=False) for function in functions]


def _text(message: Message) -> str:
    reasoning = message.get("reasoning")
    return f"<think>\n{reasoning}\n</think>\n\n{content_of(message)}" if reasoning else content_of(message)


def _sharegpt(message: Message) -> list[dict[str, Any]]:
    rows, text = _call_rows(message), _text(message)
    turns = [{"from": FROM[message["role"]], "value": text}] if text or not rows else []
    if rows:
        turns.append({"from": "function_call", "value": rows[0] if len(rows) == 1 else f"[{', '.join(rows)}]"})
    return turns


def _hermes(message: Message) -> list[dict[str, Any]]:
    text = _text(message)
    if message["role"] == "tool":
        return [{"from": "tool", "value": f"<tool_response>\n{text}\n</tool_response>"}]
    calls = [f"<tool_call>\n{row}\n</tool_call>" for row in _call_rows(message)]
    return [{"from": FROM[message["role"]], "value": "\n".join([*([text] if text or not calls else []), *calls])}]


@click.command()
@click.argument("dataset", metavar="NAME")
@click.option("--out", type=click.Path(path_type=Path), required=True, metavar="FILE", help="JSON lines to write.")
@click.option(
    "--split", type=click.Choice(("train", "heldout")), default="train", show_default=True, help="Which rows."
)
@click.option(
    "--form",
    type=click.Choice(("openai", "sharegpt", "hermes")),
    default="openai",
    show_default=True,
    help="How turns, calls and results are written.",
)
@click.option("--set", "settings", multiple=True, metavar="a.b=c", help="A setting of the data set. Repeatable.")
@click.option("--force", is_flag=True, help="Write over a file that is there.")
def demonstrations(dataset: str, out: Path, split: str, form: str, settings: tuple[str, ...], force: bool) -> None:
    """Write the demonstrations of a data set, with calls and results of tools, one conversation a line.

    \b
    rlhf data demonstrations lookup --out demos.jsonl
    rlhf train --algo sft --model pocket-tools --dataset demos.jsonl --set trainer.learn=all
    """
    from rlhf_core.config import parse_settings

    if out.is_dir():
        raise ConfigError(f"'{out}' is a folder", fix="name a file in it")
    if out.exists() and not force:
        raise ConfigError(f"'{out}' is there already", fix="name another file, or --force")
    ctx = context_of(open_registry(), dataset={"name": dataset, **parse_settings(settings)})
    rows = ctx.datasets.demonstrations(split)
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("w", encoding="utf-8") as file:
        for row in rows:
            last = row.turn or {"role": "assistant", "content": row.completion}
            written = {"id": row.id, **to_row([*row.prompt, last], row.tools, form)}  # pyright: ignore[reportArgumentType]
            file.write(json.dumps(written, ensure_ascii=False) + "\n")
    click.echo(f"{len(rows)} conversations of {dataset} ({split}) in {out}")
