"""What several commands share: registries, consoles, JSON."""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import click


class Choice(click.Choice[str]):
    """A choice that names the nearest of its values."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the value, or fail with a suggestion."""
        from rlhf_core.types.errors import did_you_mean

        if value not in self.choices:
            near = did_you_mean(str(value), self.choices, limit=1)
            known = near[0].upper() + near[1:] if near else f"Known: {', '.join(self.choices)}"
            self.fail(f"there is no '{value}'. {known}", param, ctx)
        return super().convert(value, param, ctx)


def emit_json(value: Any) -> None:
    """Print JSON for a machine."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def table(headers: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print aligned columns; plain text, so that it can be piped."""
    cells = [[str(c) for c in row] for row in rows]
    widths = [max([len(h), *(len(r[i]) for r in cells)]) for i, h in enumerate(headers)]
    for row in [list(headers), ["-" * w for w in widths], *cells]:
        click.echo("  ".join(c.ljust(w) for c, w in zip(row, widths)).rstrip())


def set_up_process() -> None:
    """Warnings to stderr in one line each; libraries keep quiet about loading, also those that are imported later."""
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING, stream=sys.stderr)
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    _quiet_environment()
    if "transformers" in sys.modules:
        quiet_libraries()


def quiet_libraries() -> None:
    """No progress bars from transformers and datasets, and no warning of transformers' that is for peft."""
    _quiet_environment()
    from transformers.utils import logging as hf

    hf.set_verbosity_error()
    hf.disable_progress_bar()


def _quiet_environment() -> None:
    warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


def shorten(text: str, width: int = 40) -> str:
    """One line of at most ``width`` characters."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 3] + "..."
