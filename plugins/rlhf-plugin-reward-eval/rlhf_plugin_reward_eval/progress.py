"""A bar of scored conversations on a terminal; nothing elsewhere."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console
from rich.progress import Progress as Bar
from rich.progress import TextColumn, TimeElapsedColumn


class Progress:
    """``with Progress() as p: advance = p.start("ensemble"); advance(32)``"""

    def __init__(self) -> None:
        console = Console(stderr=True)
        self.bar = Bar(
            TextColumn("{task.description}"),
            TextColumn("{task.completed:.0f} scored"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )

    def __enter__(self) -> Progress:
        self.bar.start()
        return self

    def __exit__(self, *args: object) -> None:
        self.bar.stop()

    def start(self, label: str) -> Callable[[int], None]:
        """A new line; call the function returned with the number of conversations scored."""
        task = self.bar.add_task(label, total=None)
        return lambda count: self.bar.advance(task, count)
