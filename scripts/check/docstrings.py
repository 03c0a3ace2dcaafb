"""Every public module, class, function and method of rlhf_core has a docstring."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from scripts.check.files import is_test, parse, python_files

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def check(root: Path) -> list[str]:
    """Return every public definition without one."""
    problems: list[str] = []
    for file in python_files(root):
        where = file.relative_to(root)
        if where.parts[0] != "rlhf_core" or is_test(where):
            continue
        tree = parse(file)
        if tree.body and not ast.get_docstring(tree):
            problems.append(f"{where}:1: module has no docstring")
        problems += [
            f"{where}:{node.lineno}: {name} has no docstring"
            for name, node in public(tree)
            if not ast.get_docstring(node)
        ]
    return problems


def public(tree: ast.Module | ast.ClassDef, prefix: str = "") -> Iterator[tuple[str, Definition]]:
    """Yield public classes, functions and methods; not what is inside functions, overloads or setters."""
    for node in tree.body:
        if not isinstance(node, Definition) or node.name.startswith("_") or is_variant(node):
            continue
        yield prefix + node.name, node
        if isinstance(node, ast.ClassDef):
            yield from public(node, f"{prefix}{node.name}.")


def is_variant(node: Definition) -> bool:
    """Whether the definition is an overload, an override or a property's setter: documented elsewhere."""
    names = {d.attr if isinstance(d, ast.Attribute) else getattr(d, "id", "") for d in node.decorator_list}
    return bool(names & {"overload", "override", "setter"})
