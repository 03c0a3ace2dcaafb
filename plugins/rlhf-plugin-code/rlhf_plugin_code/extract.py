"""Finds the program in what a model wrote."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

_FENCE = re.compile(
    r"^[ \t]*(?P<fence>`{3,}|~{3,})[ \t]*(?P<language>[\w+#.-]*)[^\n`]*\n(?P<body>.*?)"
    r"(?:^[ \t]*(?P=fence)[`~]*[ \t]*$|\Z)",
    re.DOTALL | re.MULTILINE,
)
PYTHON = frozenset({"", "python", "python3", "py", "py3", "Python"})
MAX_CHARACTERS = 1 << 20


def blocks(text: str) -> list[str]:
    """Bodies of all Markdown code blocks in Python or in no named language; the last may lack its end."""
    labelled = [(m["language"], m["body"]) for m in _FENCE.finditer(text)]
    return [body for language, body in labelled if language in PYTHON] or [body for _, body in labelled]


def program(text: str, how: str) -> str | None:
    """The program in a completion, None if there is none; ``how`` as in ``CodeConfig.extract``."""
    if len(text) > MAX_CHARACTERS or not text.strip():
        return None
    if how == "none":
        return text
    bodies = blocks(text)
    if how == "strict":
        return bodies[0] if len(bodies) == 1 else None
    if not bodies:
        return text
    return bodies[-1 if how == "last_block" else 0]


def split_tests(text: str) -> list[str]:
    """One text per test: a statement with an assert and those before it; the whole text where there is no assert."""
    tests: list[list[str]] = [[]]
    body = ast.parse(text).body
    for node in body:
        tests[-1].append(ast.unparse(node))
        if _asserts(node):
            tests.append([])
    after = tests.pop()
    if tests:
        tests[-1] += after
    elif any(isinstance(n, ast.Call) for node in body for n in executed(node)):
        tests = [after]
    return ["\n".join(lines) for lines in tests]


_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def executed(node: ast.AST) -> Iterator[ast.AST]:
    """A statement and what is in it, but for the insides of definitions, which only run when something calls them."""
    if not isinstance(node, (*_DEFINITIONS, ast.Lambda)):
        yield node
        for child in ast.iter_child_nodes(node):
            yield from executed(child)


def _asserts(node: ast.AST) -> bool:
    """Whether a statement asserts anything; ``assert True`` and ``assert (a, b)`` hold whatever the program does."""
    conditions = [n.test for n in executed(node) if isinstance(n, ast.Assert)]
    return any(
        not (isinstance(t, ast.Constant) and t.value) and not (isinstance(t, ast.Tuple) and t.elts) for t in conditions
    )


def defined(code: str) -> dict[str, str]:
    """Functions and classes at the top of a module, ``function`` or ``class`` each; none if it is no Python."""
    try:
        nodes = [node for node in ast.parse(code).body if isinstance(node, _DEFINITIONS)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    return {node.name: "class" if isinstance(node, ast.ClassDef) else "function" for node in nodes}


def before(prompt: str, entry: str) -> str | None:
    """What stands before a function's last definition in a prompt; None if that defines no such function."""
    heads = [*begins(entry).finditer(prompt)]
    return prompt[: heads[-1].start()] if heads else None


def begins(entry: str) -> re.Pattern[str]:
    """Matches the head of a function's definition."""
    return re.compile(rf"^(?:async\s+)?def\s+{re.escape(entry)}\s*\(", re.MULTILINE)


def check_body(test: str, entry: str) -> tuple[str, list[str]]:
    """Setup and tests of HumanEval's ``check(candidate)``: each assert of the body counts, or it is one test."""
    tree = ast.parse(test)
    check = next((n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "check"), None)
    if check is None or len(check.args.args) != 1 or any(isinstance(n, ast.Return) for n in ast.walk(check)):
        return test, [f"check({entry})"]
    tree.body.remove(check)
    first = f"{check.args.args[0].arg} = {entry}"
    tests = split_tests("\n".join(ast.unparse(node) for node in check.body))
    return ast.unparse(tree), [f"{first}\n{t}" for t in tests]
