"""docs/notebooks/*.ipynb from the scripts beside them (jupytext's percent format), and their list,
docs/reference/notebooks.md."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbformat import v4

from rlhf_core.config import Registry
from rlhf_study.record import recorded

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "notebooks"
INSTALL = Path(__file__).with_name("install_cell.py")
STUDY = re.compile(r'^show\(\s*"(\w+)"', re.MULTILINE)
GITHUB = re.compile(r"https://github\.com/([\w.-]+/[\w.-]+?)(?:\.git)?/?$")
COLAB = "https://colab.research.google.com"
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
LIST = """# Notebooks

One per topic: the question, a run of seconds, and what its study recorded beside what the documents say. To open one on
a hosted service, upload it with the wheels of `make dist`; its first cell installs them. Here, `make install-dev` puts
a kernel into `.venv`.

| notebook | question | study |
|---|---|---|
"""


def scripts() -> list[Path]:
    """The notebooks as text."""
    return sorted(FOLDER.glob("*.py"))


def pages() -> Mapping[Path, str]:
    """Every notebook, without outputs."""
    projects = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {
        file.with_suffix(".ipynb"): nbformat.writes(notebook(file, projects.get("urls", {}))) + "\n"
        for file in scripts()
    }


def notebook(file: Path, urls: Mapping[str, str]) -> Any:
    """The script's cells, after the first the one that installs, at the end the command that repeats the study."""
    text = file.read_text()
    cells: list[Any] = jupytext.reads(text, fmt="py:percent").cells
    title, rest = cells[0], cells[1:]
    title.source += f"\n\n{opened(file, urls)}"
    cells = [title, v4.new_code_cell(INSTALL.read_text().rstrip()), *rest]
    cells += [v4.new_markdown_cell(f"Repeat `{name}`: `{command(name)}`") for name in studies(text)]
    for n, cell in enumerate(cells):
        cell.id, cell.metadata = f"cell-{n}", {}
    return v4.new_notebook(cells=cells, metadata={"kernelspec": KERNEL, "language_info": {"name": "python"}})


def opened(file: Path, urls: Mapping[str, str]) -> str:
    """A badge, or how to open it where the repository has no public address."""
    for match in filter(None, map(GITHUB.match, urls.values())):
        page = f"{COLAB}/github/{match[1]}/blob/main/docs/notebooks/{file.with_suffix('.ipynb').name}"
        return f"[![Open in Colab]({COLAB}/assets/colab-badge.svg)]({page})"
    return "On a hosted service: upload this file and the wheels that `make dist` writes; the first cell installs them."


def studies(text: str) -> list[str]:
    """Those whose record a notebook shows."""
    return STUDY.findall(text)


def modules() -> dict[str, str]:
    return {entry.name: entry.point.module for entry in Registry(disabled=()).entries("study")}


def is_recorded(study: str) -> bool:
    return study in modules() and bool(recorded(modules()[study]).table)


def command(study: str) -> str:
    """What repeats a study, as its README writes it."""
    verdict = recorded(modules()[study]).verdict if study in modules() else ""
    written = re.search(rf"`(rlhf study run [^`]*\b{study}\b[^`]*)`", verdict)
    return written[1] if written else f"rlhf study run {study}"


def listed() -> str:
    """docs/reference/notebooks.md."""
    rows: list[str] = []
    for file in scripts():
        text = file.read_text()
        question = next(line[2:].strip("*") for line in text.splitlines() if line.startswith("# *"))
        names = (f"{name}{'' if is_recorded(name) else ' (not recorded yet)'}" for name in studies(text))
        rows.append(f"| [{file.stem}](../notebooks/{file.stem}.ipynb) | {question} | {', '.join(names)} |\n")
    return LIST + "".join(rows)
