"""Which names tests take from the program: its entry points. A name that tests bind is theirs, even where that
statement failed; a module that they do not import is imported on their side; any other name makes them unclear."""

from __future__ import annotations

import ast
import builtins
import symtable
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_ORDER = ("value", "iter", "context_expr", "target", "targets", "optional_vars")
"""Fields that come before a node's others when it runs."""


class Unclear(ValueError):
    """Tests that read a name which nothing supplies, or that leave their verdict to the program."""


class RequiredNames(NamedTuple):
    """Where the names come from that tests read and do not bind."""

    program: list[str]
    modules: list[str]
    """Of the standard library, to be imported on the tests' side."""


def required_names(
    texts: Sequence[str],
    named: Sequence[str],
    defined: Collection[str] = (),
    load: Callable[[str], object | None] = sys.modules.get,
) -> RequiredNames:
    """The names that tests, run in one module, take from the program; :class:`Unclear` if that is open.

    ``named`` are the entry points that the row names, maybe called like built-in functions. Without any, or where the
    tests read them only as attributes (``Solution().f``), it is the one name that nothing else supplies. ``defined``
    are names that the tests' module has already; ``load`` gives a module, or None where nothing is known of it.
    """
    nodes = [node for text in texts for node in ast.walk(ast.parse(text))]
    read = _reads(nodes)
    starred = [load(str(n.module)) for n in nodes if isinstance(n, ast.ImportFrom) and n.names[0].name == "*"]
    free = supplied(texts) - {*defined}.union(*map(_public, starred))
    program = [name for name in dict.fromkeys(named) if name in free]
    rest = sorted(name for name in free if name not in program and not hasattr(builtins, name))
    modules = [name for name in rest if name in sys.stdlib_module_names and all(read[name])]
    rest = [name for name in rest if name not in modules]
    if None in starred:  # any of the rest may be that module's
        return RequiredNames(program or rest[:1], modules)
    _check_modules({name: load(name) for name in modules}, read)
    if named and not program and not {*named} & {n.attr for n in nodes if isinstance(n, ast.Attribute)}:
        raise Unclear(f"the tests read no {' and no '.join(named)} of the program")
    if not program and len(rest) == 1 and not (all(read[rest[0]]) and rest[0][0].islower()):
        program, rest = rest, []
    if rest:
        raise Unclear(f"the tests read {', '.join(rest)}, which they neither define nor import")
    _check_comparisons(nodes, {*program})
    return RequiredNames(program, modules)


def _reads(nodes: Iterable[ast.AST]) -> dict[str, list[str]]:
    """For each name the attributes of it that are read; "" where it is read as a whole."""
    nodes = [*nodes]
    attributes = {id(n.value): n.attr for n in nodes if isinstance(n, ast.Attribute)}
    read: dict[str, list[str]] = {}
    for node in nodes:
        if isinstance(node, ast.Name):
            read.setdefault(node.id, []).append(attributes.get(id(node), ""))
    return read


def _public(module: object) -> set[str]:
    """What ``from module import *`` binds."""
    return {*getattr(module, "__all__", [n for n in getattr(module, "__dict__", {}) if n[0] != "_"])}


def _check_modules(modules: Mapping[str, object | None], read: Mapping[str, Sequence[str]]) -> None:
    for name, module in modules.items():
        for attribute in read[name]:
            if module is not None and not hasattr(module, attribute):
                raise Unclear(f"the tests read {name}.{attribute}, and the module {name} has no {attribute}")


def _check_comparisons(nodes: Iterable[ast.AST], program: set[str]) -> None:
    for node in nodes:
        if isinstance(node, ast.Compare):
            sides = [program & {*_reads(ast.walk(side))} for side in (node.left, *node.comparators)]
            if sum(map(bool, sides)) > 1 and len(set[str]().union(*sides)) > 1:
                raise Unclear(f"both sides of a comparison are the program's: {ast.unparse(node)[:80]!r}")


def supplied(texts: Sequence[str]) -> set[str]:
    """Names that texts, run in one module, read before they bind them, or never bind; function bodies run later."""
    tables = [symtable.symtable(text, "tests", "exec") for text in texts]
    reader = _Reader()
    for text in texts:
        reader.visit(ast.parse(text))
    read = set[str]().union(*map(_read, tables))
    return reader.first_read | read - set[str]().union(*map(_bound, tables))


def bound(text: str) -> set[str]:
    """Names that a module of this text binds."""
    return _bound(symtable.symtable(text, "tests", "exec"))


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
        for field in ("name", "rest"):  # of patterns
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
        elif isinstance(node, ast.ExceptHandler):
            self._all([node.type])
            self.bound |= {node.name} if node.name else set()
            self._all([node.body])
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
