"""The fenced blocks of the documentation, and the commands in them."""

from __future__ import annotations

import re
import shlex
import textwrap
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "configs/README.md", "eval/README.md")),
    *(p for p in sorted((ROOT / "docs").rglob("*.md")) if "reference" not in p.parts),
    *sorted(ROOT.glob("plugins/*/README.md")),
]
"""docs/reference is written from the code, with what ``--help`` prints."""
FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)(?P<info>[^\n`]*)\n(?P<text>.*?)^(?P=indent)```$", re.DOTALL | re.MULTILINE
)
MARKER = re.compile(r"<!-- not run: (?P<reason>[^>]+) -->\s*\Z")
TITLE = re.compile(r'title="(?P<file>[^"]+)"')
PROGRAMS = (
    "rlhf",
    "pip",
    "python",
    "make",
    "export",
    "cd",
    "bash",
    "pytest",
    "tensorboard",
    "git",
    "twine",
    "echo",
    "source",
)
ASSIGNMENT = re.compile(r"[A-Z_]+=")
SHELL = ("", "bash", "sh", "console")


class Block(NamedTuple):
    """One fenced block. Example: ``Block("docs/python.md", 6, "python", "from rlhf_core import train ...", None)``"""

    page: str
    line: int
    language: str
    text: str
    reason: str | None
    """Why it is not executed: a comment ``<!-- not run: needs a key -->`` above the fence."""
    title: str | None
    """File that the block shows: ``json title="chat.jsonl"``."""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


class Command(NamedTuple):
    """One command of a block, split into words."""

    block: Block
    words: list[str]
    """Of a pipe those of the last program."""
    line: str
    """The whole line, for a shell."""
    piped: bool = False

    def __str__(self) -> str:
        return f"{self.block}: {shlex.join(self.words)}"


def blocks(page: Path) -> list[Block]:
    """The blocks of a page, from top to bottom; one without a language whose lines all are commands is ``bash``."""
    text = page.read_text()
    found: list[Block] = []
    for match in FENCE.finditer(text):
        body, language = textwrap.dedent(match["text"]), match["language"]
        title = TITLE.search(match["info"])
        if title and language in SHELL:
            language = "text"  # a file, not what a reader types
        elif language in SHELL:
            language = "bash" if all(is_command(line) for line in logical_lines(body)) else "text"
        marker = MARKER.search(text[: match.start()])
        line = text.count("\n", 0, match.start()) + 1
        name = page.relative_to(ROOT).as_posix()
        found.append(
            Block(name, line, language, body, marker["reason"] if marker else None, title["file"] if title else None)
        )
    return found


def logical_lines(text: str) -> list[str]:
    """Lines of a shell block, those that end in a backslash joined to the next; no blank ones, no comments."""
    joined = re.sub(r"\\\n\s*", " ", text)
    return [line.strip() for line in joined.splitlines() if line.strip() and not line.lstrip().startswith("#")]


def is_command(line: str) -> bool:
    """Whether a line begins with the name of a program, environment variables before it aside."""
    return next((word for word in line.split() if not ASSIGNMENT.match(word)), "") in PROGRAMS


def commands(block: Block) -> list[Command]:
    """The commands of a shell block, without comments; ``a && b`` are two."""
    found: list[Command] = []
    for line in logical_lines(block.text):
        lexer = shlex.shlex(line, posix=True, punctuation_chars="&|;<>")
        lexer.whitespace_split = True
        words: list[str] = []
        piped = redirected = False
        for word in [*lexer, "&&"]:
            if word == "|":
                words, piped = [], True
            elif word in (">", "<"):
                redirected = True
            elif redirected:
                redirected = False
            elif word in ("&&", ";"):
                found += [Command(block, words, line, piped)] if words else []
                words, piped = [], False
            elif words or not ASSIGNMENT.match(word):
                words.append(word)
    return found


ALL = [block for page in PAGES for block in blocks(page)]
