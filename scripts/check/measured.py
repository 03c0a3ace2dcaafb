"""The size of this tree as one table: ``python -m scripts.check.measured [--before COMMIT]``.

With a commit, first the table of the tree as it was there. Code lines are lines without docstrings, comments and blank
lines. Tests are left out of every number.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from scripts.check.files import is_test, parse, python_files, repository_files

TREES = {
    "rlhf_core": ("rlhf_core",),
    "plugins": ("plugins",),
    "eval + extensions + scripts": ("eval", "extensions", "scripts"),
    "all": ("rlhf_core", "plugins", "eval", "extensions", "scripts"),
}
NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
COUNT_NAMES = """
import importlib, json, sys
print(json.dumps({name: len(getattr(importlib.import_module(name), "__all__", ())) for name in sys.argv[1:]}))
"""
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class FileSize:
    lines: int
    code: int
    functions: tuple[int, ...]


def measure(file: Path) -> FileSize:
    """Count the file's lines, its code lines and the lines of each function."""
    text = file.read_text()
    tree = parse(file)
    functions = (node for node in ast.walk(tree) if isinstance(node, Function))
    lengths = tuple((node.end_lineno or node.lineno) - node.lineno + 1 for node in functions)
    return FileSize(len(text.splitlines()), len(code_lines(text) - docstring_lines(tree)), lengths)


def code_lines(text: str) -> set[int]:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return {n for t in tokens if t.type not in NO_CODE for n in range(t.start[0], t.end[0] + 1)}


def docstring_lines(tree: ast.Module) -> set[int]:
    return {
        number
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


def row(name: str, sizes: list[FileSize]) -> str:
    lengths = sorted(length for size in sizes for length in size.functions) or [0]
    p95 = lengths[int(0.95 * (len(lengths) - 1))]
    numbers = (len(sizes), sum(s.lines for s in sizes), sum(s.code for s in sizes))
    cells = " | ".join(f"{n:,}" for n in numbers)
    return f"| {name} | {cells} | {median(lengths):.0f} / {p95} / {lengths[-1]} |"


def public_names(root: Path) -> dict[str, int]:
    """The names of each package's surface; imported by a process of its own, since another tree has other modules."""
    modules = {f.stem for f in (root / "rlhf_core").glob("[!_]*.py")} | {p.name for p in packages(root)}
    names = ["rlhf_core", *(f"rlhf_core.{name}" for name in sorted(modules))]
    command = [sys.executable, "-c", COUNT_NAMES, *names]
    answer = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    return {module: number for module, number in json.loads(answer.stdout).items() if number}


def packages(root: Path) -> list[Path]:
    return sorted(f.parent for f in (root / "rlhf_core").glob("*/__init__.py"))


def words(files: list[Path]) -> int:
    return sum(len(re.findall(r"\S+", file.read_text())) for file in files)


def markdown_words(script: Path) -> int:
    """Of the Markdown cells of a notebook's script."""
    cells = re.findall(r"^# %% \[markdown\]\n((?:#.*\n?)+)", script.read_text(), re.MULTILINE)
    return sum(len(re.findall(r"\S+", cell.replace("\n#", "\n")[1:])) for cell in cells)


def documentation(root: Path) -> list[Path]:
    markdown = [f for f in repository_files(root) if f.suffix == ".md" and not is_test(f.relative_to(root))]
    written = [f for f in markdown if f.name not in ("CHANGELOG.md", "result.md")]  # the second are studies' tables
    return [f for f in written if (root / "docs" / "reference") not in f.parents]


def report(root: Path) -> Iterator[str]:
    files = [(f, f.relative_to(root)) for f in python_files(root)]
    sizes = [(where.parts[0], measure(file)) for file, where in files if not is_test(where)]
    yield "| tree, without tests | files | lines | code | function: median / p95 / longest |"
    yield "|---|---|---|---|---|"
    for name, tops in TREES.items():
        yield row(name, [size for top, size in sizes if top in tops])
    public = public_names(root)
    yield f"\nPublic names: {sum(public.values())} ({', '.join(f'{m} {n}' for m, n in public.items())})"
    written = words(documentation(root)) + sum(map(markdown_words, (root / "docs" / "notebooks").glob("*.py")))
    yield f"Written documentation: {written:,} words"
    yield f"Changelog: {words([root / 'CHANGELOG.md']):,} words"
    core = packages(root)
    yield f"Packages of the core: {len(core)} ({', '.join(p.name for p in core)})"


def report_of(commit: str, root: Path) -> list[str]:
    """The report of the tree at a commit."""
    with TemporaryDirectory() as folder:
        tree = subprocess.run(["git", "archive", commit], cwd=root, stdout=subprocess.PIPE, check=True)
        subprocess.run(["tar", "-x", "-C", folder], input=tree.stdout, check=True)
        return list(report(Path(folder)))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m scripts.check.measured", description=__doc__)
    parser.add_argument("--before", metavar="COMMIT", help="compare with the tree of this commit")
    before, root = parser.parse_args().before, Path(__file__).parents[2]
    if before:
        print(f"At {before}:\n", *report_of(before, root), "\nNow:\n", sep="\n")
    print(*report(root), sep="\n")


if __name__ == "__main__":
    main()
