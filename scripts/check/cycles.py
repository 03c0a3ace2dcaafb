"""No import circle between the modules of a package: of the core, of a plugin, of eval.

Imports inside functions count, since they only hide a circle; those under ``if TYPE_CHECKING`` do not.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from scripts.check.files import is_test, parse, python_files
from scripts.check.imports import find_projects

Graph = Mapping[str, frozenset[str]]
"""Module -> modules of the same package that it imports."""


def check(root: Path) -> list[str]:
    """Return a circle of each package that has one."""
    folders = (root, *(project.folder for project in find_projects(root)))
    return [" -> ".join(cycle) for folder in folders if (cycle := circle(import_graph(folder, root)))]


def import_graph(folder: Path, root: Path) -> dict[str, frozenset[str]]:
    """Imports between the modules of the packages right below ``folder`` (of the root, only the core)."""
    files = {
        module_name(file.relative_to(folder)): file
        for file in python_files(root)
        if folder in file.parents and belongs(file.relative_to(folder), top=folder == root)
    }
    return {module: frozenset(targets(parse(file), module, files)) for module, file in files.items()}


def belongs(path: Path, *, top: bool) -> bool:
    """Whether a file is a module of a package rather than a test, a script or a template."""
    if is_test(path) or len(path.parts) < 2:
        return False
    return path.parts[0] == "rlhf_core" if top else path.parts[0].startswith("rlhf_")


def module_name(path: Path) -> str:
    """Example: ``rlhf_core.runs`` for ``rlhf_core/runs/__init__.py``"""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def targets(tree: ast.AST, module: str, modules: Mapping[str, Path]) -> Iterator[str]:
    """Modules among ``modules`` that a file imports when it runs."""
    for node in running(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom):
            base = absolute(node, module, modules)
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                if inner in modules:
                    yield inner
                elif base in modules:
                    yield base


def absolute(node: ast.ImportFrom, module: str, modules: Mapping[str, Path]) -> str:
    """The module that ``from ... import`` names, relative imports resolved."""
    if not node.level:
        return node.module or ""
    package = module.split(".")
    is_package = modules[module].name == "__init__.py"
    base = package[: len(package) - node.level + is_package]
    return ".".join([*base, *([node.module] if node.module else [])])


def running(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node but those that only a type checker looks at."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for other in node.orelse:
                yield other
                yield from running(other)
            continue
        yield node
        yield from running(node)


def circle(graph: Graph) -> list[str]:
    """A circle, both ends the same module; empty if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []
