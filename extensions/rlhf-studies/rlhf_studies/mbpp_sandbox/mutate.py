"""Programs with one small change."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator

SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}


def places(tree: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Every place where one small change can be made: operators, whole numbers, truth values, conditions, results."""
    for node in ast.walk(tree):
        for slot in ("op", "ops"):
            found = getattr(node, slot, None)
            first = found[0] if isinstance(found, list) and found else found
            if type(first) in SWAPS:
                yield node, slot
        if isinstance(node, ast.Constant) and type(node.value) in (int, bool):
            yield node, "value"
        if isinstance(node, ast.If | ast.While):
            yield node, "test"
        if isinstance(node, ast.Return) and node.value is not None:
            yield node, "result"


def mutate(code: str, seed: int) -> str | None:
    """The program with one change at a place drawn by ``seed``; None if there is none."""
    tree = ast.parse(code)
    found = list(places(tree))
    if not found:
        return None
    node, slot = random.Random(seed).choice(found)
    match slot:
        case "op":
            node.op = SWAPS[type(node.op)]()  # pyright: ignore[reportAttributeAccessIssue]
        case "ops":
            node.ops[0] = SWAPS[type(node.ops[0])]()  # pyright: ignore[reportAttributeAccessIssue]
        case "value":
            value = node.value  # pyright: ignore[reportAttributeAccessIssue]
            node.value = not value if isinstance(value, bool) else value + 1  # pyright: ignore[reportAttributeAccessIssue]
        case "test":
            node.test = ast.UnaryOp(ast.Not(), node.test)  # pyright: ignore[reportAttributeAccessIssue]
        case "result":
            node.value = ast.Constant(None)  # pyright: ignore[reportAttributeAccessIssue]
    return ast.unparse(ast.fix_missing_locations(tree))
