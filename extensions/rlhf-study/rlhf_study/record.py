"""What is recorded of a study: found by its entry point's path, without importing it."""

from __future__ import annotations

import json
import os
import platform
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple


class Verdict(NamedTuple):
    """What a study says of one published finding."""

    line: str
    """Document and line; "" where the claim names none. Example: ``000:696``"""
    says: str
    """The finding; a question where the document leaves the answer open."""
    here: str
    """What was measured."""
    verdict: str
    """``reproduced``, ``contradicted``, ``not resolvable here``; the answer to an open question."""
    command: str = ""
    """What shows it."""


@dataclass(frozen=True)
class Recorded:
    """The texts beside a study's code."""

    folder: Path | None
    question: str
    """First line of README.md."""
    verdict: str
    """The rest of README.md."""
    table: str
    """``result.md``; "" where nothing is recorded."""


def recorded(module: str) -> Recorded:
    """Read what the package of a study's module holds. Nothing is imported: only the top package is located."""
    folder = folder_of(module)
    heading, _, verdict = _text(folder, "README.md").partition("\n")
    return Recorded(folder, heading.lstrip("# ").strip(), verdict.strip(), _text(folder, "result.md").strip())


def claims(modules: Mapping[str, str]) -> list[Verdict]:
    """Verdicts in the records of studies (name -> module), and in ``claims.toml`` of their top packages, by line."""
    verdicts: list[Verdict] = []
    for name, module in modules.items():
        text = _text(folder_of(module), "result.json")
        rows = json.loads(text).get("verdicts", []) if '"verdicts"' in text else []
        verdicts += [Verdict(**{**row, "command": f"rlhf study show {name}"}) for row in rows]
    for top in sorted({module.split(".")[0] for module in modules.values()}):
        rows = tomllib.loads(_text(folder_of(f"{top}.claims"), "claims.toml")).get("claim", [])
        verdicts += [Verdict(**row) for row in rows]
    return sorted(verdicts, key=_sort_key)


def _sort_key(verdict: Verdict) -> tuple[str, int]:
    document, _, number = verdict.line.partition(":")
    return document, int(number) if number.isdecimal() else 0


def folder_of(module: str) -> Path | None:
    """The folder of the package that a module is in. Example: ``acme.noise.config`` -> ``.../acme/noise``"""
    top, *inner = module.split(".")
    spec = find_spec(top)
    roots = list(spec.submodule_search_locations or ()) if spec else []
    folders = [Path(root, *inner[:-1]) for root in roots]
    return next((folder for folder in folders if folder.is_dir()), None)


def _text(folder: Path | None, name: str) -> str:
    return (folder / name).read_text() if folder is not None and (folder / name).is_file() else ""


def machine() -> dict[str, Any]:
    """What figures depend on besides the code."""
    from rlhf_core.config.plan import library_versions

    system = f"{platform.system()} {platform.machine()}"
    facts = {"system": system, "cores": os.cpu_count(), "versions": library_versions()}
    return facts | ({"load_average": os.getloadavg()} if hasattr(os, "getloadavg") else {})
