"""No file names a folder of one person's or one machine's: absolute home and workspace paths."""

from __future__ import annotations

import re
from pathlib import Path

from scripts.check.files import repository_files

TEXT = {".py", ".md", ".toml", ".yaml", ".yml", ".json", ".jsonl", ".txt", ".sh", ".cfg", ".ini", ".html", ""}
HOMES = r"(?<![\w.:$}/-])/(?:home/\w|Users/\w|root/|mnt/\w|tmp/\w)|\b[A-Z]:\\Users\\"
SYSTEM = {"usr", "var", "etc", "opt", "bin", "dev", "srv", "tmp", "run", "private"}
"""Top folders that every machine has: naming them tells nothing of where this checkout lies. A file of somebody's in
the temporary folder is found all the same, by :data:`HOMES`."""


def pattern(root: Path) -> re.Pattern[str]:
    """Home folders of any system, and the top folder under which this checkout lies."""
    top = root.parts[1] if len(root.parts) > 2 else ""
    here = rf"|(?<![\w.:$}}/-])/{re.escape(top)}/" if top and top not in SYSTEM else ""
    return re.compile(HOMES + here)


def check(root: Path) -> list[str]:
    problems: list[str] = []
    paths = pattern(root)
    for file in repository_files(root):
        if file.suffix not in TEXT or file == Path(__file__).resolve():
            continue
        try:
            text = file.read_text()
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            match = paths.search(line)
            if match:
                problems.append(f"{file.relative_to(root)}:{number}: absolute path {line[match.start() :][:40]!r}")
    return problems
