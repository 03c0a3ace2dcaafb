"""No import circle between the modules of a package: of the core, of a plugin, of eval.

Imports inside functions count, since they only hide a circle. With those under ``if TYPE_CHECKING`` the core has at
most two.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import networkx

from scripts.check.files import is_test, parse, python_files
from scripts.check.imports import find_projects

Graph = Mapping[str, frozenset[str]]
"""Module -> modules of the same package that it imports."""
Nodes = Callable[[ast.AST], Iterable[ast.AST]]
MOST_TYPED = 2
"""Circles of the core once imports for typing count."""


def check(root: Path) -> list[str]:
    """Return a circle of each package that has one."""
    folders = (root, *(project.folder for project in find_projects(root)))
    problems = [" -> ".join(cycle) for folder in folders if (cycle := circle(import_graph(folder, root)))]
    imports = import_graph(root, root, ast.walk)
    typed = networkx.DiGraph([(module, other) for module, others in imports.items() for other in others])
    tied = [sorted(modules) for modules in networkx.strongly_connected_components(typed) if len(modules) > 1]
    extra = [f"a circle of imports for typing: {', '.join(modules)}" for modules in sorted(tied)[MOST_TYPED:]]
    return problems + extra


def import_graph(folder: Path, root: Path, nodes: Nodes | None = None) -> dict[str, frozenset[str]]:
    """Imports between the modules of the packages right below ``folder`` (of the root, only the core), of those that
    run or of all ``nodes`` of a file.
    """
    files = {
        module_name(file.relative_to(folder)): file
        for file in python_files(root)
        if folder in file.parents and belongs(file.relative_to(folder), top=folder == root)
    }
    chosen = nodes or running
    return {module: frozenset(targets(chosen(parse(file)), module, files)) for module, file in files.items()}


def belongs(path: Path, *, top: bool) -> bool:
    """Whether a file is a module of a package rather than a test, a script or a template."""
    if is_test(path) or len(path.parts) < 2:
        return False
    return path.parts[0] == "rlhf_core" if top else path.parts[0].startswith("rlhf_")


def module_name(path: Path) -> str:
    """Example: ``rlhf_core.runs`` for ``rlhf_core/runs/__init__.py``"""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def targets(nodes: Iterable[ast.AST], module: str, modules: Mapping[str, Path]) -> Iterator[str]:
    """Modules among ``modules`` that a file's nodes import."""
    for node in nodes:
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
