"""Files of at most 400 lines. Functions over 60 lines are printed as a note, not as a problem."""

from __future__ import annotations

import ast
from pathlib import Path

from scripts.check.files import parse, python_files

MAX_FILE_LINES = 400
LONG_FUNCTION_LINES = 60


def check(root: Path) -> list[str]:
    """Return every Python file that is too long."""
    problems: list[str] = []
    for file in python_files(root):
        where = file.relative_to(root)
        lines = file.read_text().count("\n")
        if lines > MAX_FILE_LINES:
            problems.append(f"{where}: {lines} lines, at most {MAX_FILE_LINES}; one idea per file")
        for line, name, length in long_functions(parse(file)):
            print(f"note: {where}:{line}: {name} is {length} lines")
    return problems


def long_functions(tree: ast.Module) -> list[tuple[int, str, int]]:
    """Return (line, name, length) of functions over :data:`LONG_FUNCTION_LINES` lines."""
    found: list[tuple[int, str, int]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > LONG_FUNCTION_LINES:
                found.append((node.lineno, node.name, length))
    return found
