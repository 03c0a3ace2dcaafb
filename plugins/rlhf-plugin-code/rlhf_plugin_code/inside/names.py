"""Which names tests take from the program. A name that tests bind is theirs, even where that statement failed."""

from __future__ import annotations

import ast
import symtable
from collections.abc import Iterable, Sequence

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_ORDER = ("value", "iter", "context_expr", "target", "targets", "optional_vars")
"""Fields that come before a node's others when it runs."""


def supplied(texts: Sequence[str]) -> set[str]:
    """Names that texts, run in one module, read before they bind them, or never bind; function bodies run later."""
    tables = [symtable.symtable(text, "tests", "exec") for text in texts]
    reader = _Reader()
    for text in texts:
        reader.visit(ast.parse(text))
    read = set[str]().union(*map(_read, tables))
    return reader.first_read | read - set[str]().union(*map(_bound, tables))


def used(texts: Sequence[str]) -> set[str]:
    nodes = (node for text in texts for node in ast.walk(ast.parse(text)))
    return {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def _read(table: symtable.SymbolTable) -> set[str]:
    outermost = table.get_type() == "module"
    names = {s.get_name() for s in table.get_symbols() if s.is_referenced() and (outermost or s.is_global())}
    return names.union(*(_read(child) for child in table.get_children()))


def _bound(table: symtable.SymbolTable) -> set[str]:
    outermost = table.get_type() == "module"
    binding = [s for s in table.get_symbols() if s.is_assigned() or s.is_imported()]
    names = {s.get_name() for s in binding if outermost or s.is_global()}
    return names.union(*(_bound(child) for child in table.get_children()))


class _Reader(ast.NodeVisitor):
    """Walks statements in the order in which they run, but for the bodies of functions."""

    def __init__(self) -> None:
        self.first_read: set[str] = set()
        self.bound: set[str] = set()

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self._reads(node.id)
        else:
            self.bound.add(node.id)

    def _reads(self, name: str) -> None:
        if name not in self.bound:
            self.first_read.add(name)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self._reads(node.target.id)
        self.generic_visit(node)

    def generic_visit(self, node: ast.AST) -> None:
        fields = sorted(node._fields, key=lambda f: _ORDER.index(f) if f in _ORDER else len(_ORDER))
        self._all(getattr(node, field, None) for field in fields)
        if isinstance(node, ast.alias):
            self.bound.add((node.asname or node.name).split(".")[0])
        for field in ("name", "rest"):  # of an exception that is caught, and of patterns
            if isinstance(name := getattr(node, field, None), str):
                self.bound.add(name)

    def _all(self, values: Iterable[object]) -> None:
        for value in values:
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    self.visit(child)

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, (*_FUNCTIONS, ast.Lambda)):
            arguments = node.args
            self._all([getattr(node, "decorator_list", []), arguments.defaults, arguments.kw_defaults])
            self.bound |= {node.name} if isinstance(node, _FUNCTIONS) else set()
            self.bound |= {name for n in ast.walk(node) if isinstance(n, ast.Global) for name in n.names}
        elif isinstance(node, ast.ClassDef):
            self._all([node.decorator_list, node.bases, node.keywords])
            self._inside([node.body])
            self.bound.add(node.name)
        elif isinstance(node, _COMPREHENSIONS):
            results = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
            self._inside([node.generators, *results])
            self.bound |= {n.target.id for n in ast.walk(node) if isinstance(n, ast.NamedExpr)}
        else:
            super().visit(node)

    def _inside(self, values: Iterable[object]) -> None:
        """What is bound there is not bound behind it."""
        outside = set(self.bound)
        self._all(values)
        self.bound = outside
