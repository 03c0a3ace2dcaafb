"""Where answers are written: one after the other, as JSON lines, or in two columns of a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import click

from rlhf_core.rollouts import Rollout


class Writer(Protocol):
    def write(self, piece: str) -> None: ...

    def turn(self, text: str) -> None: ...

    def end(self, rollout: Rollout | None) -> None: ...


class Screen:
    """Answers as plain text, each on lines of its own, named where there are two models."""

    def note(self, text: str) -> None:
        """What is no answer goes to stderr, so that stdout holds answers only."""
        click.secho(text, dim=True, err=True)

    @contextmanager
    def turn(self, message: str, names: Sequence[str]) -> Generator[list[Writer], None, None]:
        yield [_Lines(name if len(names) > 1 else "") for name in names]


class _Lines:
    def __init__(self, name: str) -> None:
        self.name, self.begun, self.open = name, False, False

    def write(self, piece: str) -> None:
        if not self.begun and self.name:
            click.secho(f"[{self.name}] ", bold=True, nl=False)
        self.begun = True
        click.echo(piece, nl=False)
        sys.stdout.flush()
        self.open = True

    def turn(self, text: str) -> None:
        if self.open:
            click.echo("")
            self.open = False
        sys.stdout.flush()
        click.secho(text, dim=True, err=True)

    def end(self, rollout: Rollout | None) -> None:
        if not self.begun:
            self.write("")
        if rollout is None or rollout.finish_reason.value == "length":
            click.secho(" [stopped]" if rollout is None else " [cut at max tokens]", dim=True, err=True, nl=False)
        click.echo("")


class JsonScreen(Screen):
    """One JSON line for each answer."""

    @contextmanager
    def turn(self, message: str, names: Sequence[str]) -> Generator[list[Writer], None, None]:
        yield [_JsonLine(message, name) for name in names]


class _JsonLine:
    def __init__(self, message: str, name: str) -> None:
        self.row: dict[str, Any] = {"model": name, "message": message}

    def write(self, piece: str) -> None:
        pass

    def turn(self, text: str) -> None:
        self.row.setdefault("tools", []).append(text)

    def end(self, rollout: Rollout | None) -> None:
        if rollout is not None:
            facts = {"seed": rollout.seed, "tokens": len(rollout.completion_ids)}
            row = {**self.row, "answer": rollout.text, "finish_reason": rollout.finish_reason.value, **facts}
            click.echo(json.dumps(row, ensure_ascii=False))


class Columns(Screen):
    """Two answers side by side, both growing as their tokens come."""

    @contextmanager
    def turn(self, message: str, names: Sequence[str]) -> Generator[list[Writer], None, None]:
        from rich.live import Live
        from rich.table import Table
        from rich.text import Text

        columns = [_Column() for _ in names]

        def drawn() -> Table:
            table = Table(expand=True)
            for name in names:
                table.add_column(Text(name), ratio=1, overflow="fold")
            table.add_row(*(Text(column.text) for column in columns))
            return table

        with Live(get_renderable=drawn, refresh_per_second=12, vertical_overflow="visible"):
            yield list(columns)


class _Column:
    def __init__(self) -> None:
        self.text = ""

    def write(self, piece: str) -> None:
        self.text += piece

    def turn(self, text: str) -> None:
        self.text += f"\n{text}\n"

    def end(self, rollout: Rollout | None) -> None:
        if rollout is None or rollout.finish_reason.value == "length":
            self.text += " [stopped]" if rollout is None else " [cut at max tokens]"
