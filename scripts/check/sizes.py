"""Files of at most 400 lines: one idea per file."""

from __future__ import annotations

from pathlib import Path

from scripts.check.files import python_files

MAX_FILE_LINES = 400


def check(root: Path) -> list[str]:
    lines = {file.relative_to(root): file.read_text().count("\n") for file in python_files(root)}
    return [
        f"{file}: {count} lines, at most {MAX_FILE_LINES}; one idea per file"
        for file, count in lines.items()
        if count > MAX_FILE_LINES
    ]
