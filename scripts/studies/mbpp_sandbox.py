"""MBPP's reference solutions in the sandbox: do they pass, does one small change fail, how many tests a second.

python scripts/studies/mbpp_sandbox.py --data sanitized-mbpp.json [--json FILE]
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlhf_core.api import Prompt, Sample, Score
from rlhf_plugin_code.config import MBPPConfig
from rlhf_plugin_code.sandbox import Sandbox
from rlhf_plugin_code.verifiers import Asserts

COLUMNS = ("test_list", "test_imports", "code")
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


def judged(verifier: Asserts, row: dict[str, Any], code: str) -> Score:
    """The verdict on a program for a row."""
    prompt = Prompt(
        str(row["task_id"]),
        ({"role": "user", "content": row["prompt"]},),
        None,
        "mbpp",
        {name: row[name] for name in COLUMNS},
    )
    return verifier.verify(Sample(prompt, f"```python\n{code}\n```"))


def references(rows: list[dict[str, Any]], timeout_s: float) -> dict[str, Any]:
    """Every reference solution, warm."""
    verifier = MBPPConfig.model_validate({"sandbox": {"timeout_s": timeout_s}}).build(None)  # pyright: ignore[reportArgumentType]
    started, times, failed = time.perf_counter(), [], []
    for row in rows:
        begun = time.perf_counter()
        score = judged(verifier, row, row["code"])
        times.append(time.perf_counter() - begun)
        if score.value != 1.0:
            failed.append({"task_id": row["task_id"], "detail": score.detail})
    seconds, tests = time.perf_counter() - started, sum(len(r["test_list"]) for r in rows)
    verifier.close()
    return {
        "passed": len(rows) - len(failed),
        "failed": failed,
        "tests": tests,
        "tests_per_second_warm": round(tests / seconds, 1),
        "programs_per_second_warm": round(len(rows) / seconds, 1),
        "median_ms_warm": round(1000 * statistics.median(times), 1),
    }


def mutants(rows: list[dict[str, Any]], seed: int) -> dict[str, Any]:
    """Every reference solution with one change."""
    verifier = MBPPConfig.model_validate({"sandbox": {"timeout_s": 3.0}}).build(None)  # pyright: ignore[reportArgumentType]
    changed = [(row, code) for i, row in enumerate(rows) if (code := mutate(row["code"], seed + i)) is not None]
    scores = [judged(verifier, row, code) for row, code in changed]
    verifier.close()
    survived = [row["task_id"] for (row, _), score in zip(changed, scores) if score.value == 1.0]
    return {
        "mutants": len(changed),
        "still_pass": len(survived),
        "fraction": round(len(survived) / len(changed), 4),
        "late": sum(s.parts["timeout"] == 1.0 for s in scores),
        "errors": sum(not s.ok for s in scores),
        "first_that_still_pass": survived[:10],
    }


def cold(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """A new sandbox for each program."""
    started = time.perf_counter()
    for row in rows:
        with Sandbox() as sandbox:
            sandbox.tests(row["code"], row["test_list"], setup="\n".join(row["test_imports"]))
    seconds, tests = time.perf_counter() - started, sum(len(r["test_list"]) for r in rows)
    return {
        "programs_cold": len(rows),
        "tests_per_second_cold": round(tests / seconds, 1),
        "median_ms_cold": round(1000 * seconds / len(rows), 1),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="sanitized-mbpp.json")
    parser.add_argument("--rows", type=int, help="only so many")
    parser.add_argument("--timeout", type=float, default=30.0, help="seconds for a reference solution; one needs two")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the figures there")
    args = parser.parse_args()
    rows = json.loads(args.data.read_text())[: args.rows]
    with Sandbox() as sandbox:
        walls = sandbox.isolation
    found = {
        "walls": walls,
        "rows": len(rows),
        **references(rows, args.timeout),
        **cold(rows[:40]),
        **mutants(rows, args.seed),
    }
    text = json.dumps(found, indent=1)
    print(text)
    if args.json:
        args.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
