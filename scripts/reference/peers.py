"""The column ``rlhf`` of docs/peers.md: what is installed here, or tested, decides each cell."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

from rlhf_core.cli.main import cli
from rlhf_core.config.run import RunConfig
from rlhf_core.data.settings import DatasetSettings
from rlhf_core.plugins.entry_points import entries_of
from rlhf_core.plugins.registry import KINDS, Registry
from scripts.reference.cli import helps
from scripts.reference.fields import rows_of

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "peers.md"
MOST = 4
"""More names than these are counted."""
FEATURES: Mapping[str, str] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
"""Feature -> a pattern of what is installed (``DISTRIBUTION KIND/NAME``, ``KIND/NAME.SETTING``), or a tested file."""


def pages() -> Mapping[Path, str]:
    """The page with the second cell of every table whose second column is ``rlhf`` written anew."""
    offered, filled, ours = list(offers(Registry(disabled=()))), list[str](), False
    for line in PAGE.read_text().splitlines():
        cells = [text.strip() for text in line.split("|")]
        if not line.startswith("|"):
            ours = False
        elif cells[2] == "rlhf":
            ours = True
        elif ours and not line.startswith("|---"):
            cells[2] = cell(FEATURES[cells[1]], offered)
            line = " | ".join(cells).strip()
        filled.append(line)
    return {PAGE: "\n".join(filled) + "\n"}


def cell(pattern: str, offered: list[str]) -> str:
    """Example: ``● `vllm`, `vllm_colocated` ``"""
    if pattern.endswith(".py"):
        (ROOT / pattern).stat()  # a test that moved is an error
        return f"● [tested](../{pattern})"
    names = list(dict.fromkeys(spelled(name) for name in offered if matches(pattern, name)))
    if len(names) > MOST:
        return f"● {len(names)}"
    return f"● {', '.join(f'`{name}`' for name in names)}" if names else "○"


def matches(pattern: str, offer: str) -> bool:
    """Whether a pattern, which names no setting unless it has a dot, finds what is offered."""
    return bool(re.search(pattern, offer)) and (r"\." in pattern or "." not in offer.partition("/")[2])


def spelled(offer: str) -> str:
    """As a user writes it. Examples: ``vllm``, ``trainer.packing``, ``rlhf data check``"""
    kind, _, name = offer.partition("/")
    if kind == "command":
        return f"rlhf {name}"
    if kind == "run":
        return name
    component, dot, setting = name.partition(".")
    return f"{kind.rpartition(' ')[2]}.{setting}" if dot else component


def offers(registry: Registry) -> Iterator[str]:
    """Every component with its settings, every setting of a run, and every command."""
    for kind in KINDS:
        for entry in registry.entries(kind):
            if entry.distribution.startswith("rlhf-"):
                yield f"{entry.distribution} {kind}/{entry.name}"
                fields = registry.load(kind, entry.qualified).model_fields
                yield from (f"{entry.distribution} {kind}/{entry.name}.{field}" for field in fields)
    for group in ("modality", "model"):
        yield from (f"{entry.distribution} {group}/{entry.name}" for entry in entries_of(f"rlhf.{group}"))
    yield from (f"run/{row[0].strip('`')}" for row in rows_of(RunConfig, "", None))
    yield from (f"run/dataset.{field}" for field in DatasetSettings.model_fields)
    yield from (f"command/{path.removeprefix('rlhf ')}" for path, _ in helps(cli, "rlhf", None))
