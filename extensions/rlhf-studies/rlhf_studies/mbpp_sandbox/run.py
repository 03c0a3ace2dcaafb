"""The reference solutions warm and cold, and each with one change."""

from __future__ import annotations

import ast
import json
import random
import statistics
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlhf_core.cli import context_of, open_registry
from rlhf_core.data import Prompt
from rlhf_core.rewards import Sample, Score
from rlhf_plugin_code.config import MBPPConfig
from rlhf_plugin_code.sandbox import Sandbox
from rlhf_plugin_code.verifiers import Asserts
from rlhf_studies.common.outside import data_file
from rlhf_studies.mbpp_sandbox.config import MbppSandboxConfig
from rlhf_study.study import Study
from rlhf_study.tables import markdown

COLUMNS = ("test_list", "test_imports", "code")
COLD = 40
"""Programs that each get a new sandbox."""
MUTANT_TIMEOUT_S = 3.0
Row = Mapping[str, Any]


class MbppSandbox(Study[MbppSandboxConfig]):
    def run(self, seed: int, folder: Path) -> dict[str, Any]:
        file = data_file(self.config.data, "mbpp", "sanitized-mbpp.json")
        rows = json.loads(file.read_text())[: self.config.rows]
        with Sandbox() as sandbox:
            isolation = sandbox.isolation
        return {
            "isolation": isolation,
            "rows": len(rows),
            **references(rows, self.config.timeout_s),
            **cold(rows[:COLD]),
            **mutants(rows, seed),
        }

    def table(self, results: Mapping[int, Mapping[str, Any]]) -> str:
        keys = ("rows", "passed", "tests", "mutants", "still_pass", "tests_per_second_warm", "tests_per_second_cold")
        rows = [(seed, *(figures[key] for key in keys)) for seed, figures in results.items()]
        return markdown(("seed", *(key.replace("_", " ") for key in keys)), rows)


@contextmanager
def verifier(timeout_s: float) -> Generator[Asserts, None, None]:
    config = MBPPConfig.model_validate({"sandbox": {"timeout_s": timeout_s}})
    built = config.build(context_of(open_registry()))
    try:
        yield built
    finally:
        built.close()


def judged(asserts: Asserts, row: Row, code: str) -> Score:
    messages = ({"role": "user", "content": row["prompt"]},)
    prompt = Prompt(str(row["task_id"]), messages, None, "mbpp", {name: row[name] for name in COLUMNS})
    return asserts.verify(Sample(prompt, f"```python\n{code}\n```"))


def references(rows: Sequence[Row], timeout_s: float) -> dict[str, Any]:
    times, failed = list[float](), list[dict[str, Any]]()
    with verifier(timeout_s) as asserts:
        for row in rows:
            begun = time.perf_counter()
            score = judged(asserts, row, row["code"])
            times.append(time.perf_counter() - begun)
            if score.value != 1.0:
                failed.append({"task_id": row["task_id"], "detail": score.detail})
    return {
        "passed": len(rows) - len(failed),
        "failed": failed,
        "tests": sum(len(row["test_list"]) for row in rows),
        "tests_per_second_warm": per_second(rows, sum(times)),
        "programs_per_second_warm": round(len(rows) / sum(times), 1),
        "median_ms_warm": round(1000 * statistics.median(times), 1),
    }


def mutants(rows: Sequence[Row], seed: int) -> dict[str, Any]:
    changed = [(row, code) for i, row in enumerate(rows) if (code := mutate(row["code"], seed + i)) is not None]
    with verifier(MUTANT_TIMEOUT_S) as asserts:
        scores = [judged(asserts, row, code) for row, code in changed]
    survived = [row["task_id"] for (row, _), score in zip(changed, scores) if score.value == 1.0]
    return {
        "mutants": len(changed),
        "still_pass": len(survived),
        "fraction": round(len(survived) / len(changed), 4),
        "late": sum(score.parts["timeout"] == 1.0 for score in scores),
        "errors": sum(not score.ok for score in scores),
        "first_that_still_pass": survived[:10],
    }


def cold(rows: Sequence[Row]) -> dict[str, Any]:
    started = time.perf_counter()
    for row in rows:
        with Sandbox() as sandbox:
            sandbox.tests(row["code"], row["test_list"], setup="\n".join(row["test_imports"]))
    seconds = time.perf_counter() - started
    return {
        "programs_cold": len(rows),
        "tests_per_second_cold": per_second(rows, seconds),
        "median_ms_cold": round(1000 * seconds / len(rows), 1),
    }


def per_second(rows: Sequence[Row], seconds: float) -> float:
    return round(sum(len(row["test_list"]) for row in rows) / seconds, 1)


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


def mutable_parts(tree: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Every place where one small change can be made: operators, whole numbers, truth values, conditions, results."""
    for node in ast.walk(tree):
        for slot in ("op", "ops"):
            value = getattr(node, slot, None)
            first = value[0] if isinstance(value, list) and value else value
            if type(first) in SWAPS:
                yield node, slot
        if isinstance(node, ast.Constant) and type(node.value) in (int, bool):
            yield node, "value"
        if isinstance(node, ast.If | ast.While):
            yield node, "test"
        if isinstance(node, ast.Return) and node.value is not None:
            yield node, "result"


def mutate(code: str, seed: int) -> str | None:
    tree = ast.parse(code)
    candidates = list(mutable_parts(tree))
    if not candidates:
        return None
    node, slot = random.Random(seed).choice(candidates)
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
        case _:  # a result
            node.value = ast.Constant(None)  # pyright: ignore[reportAttributeAccessIssue]
    return ast.unparse(ast.fix_missing_locations(tree))
