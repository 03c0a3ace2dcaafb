"""The stages of a step have no branch for rank 0: what it alone has, the others compute with nothing."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import rlhf_core
import rlhf_plugin_schedule
from rlhf_core.training.trace import prompt_rows
from rlhf_core.types.rollouts import Prompt, PromptGroup
from rlhf_plugin_schedule.uncertain import _threshold

CORE, SCHEDULE = (Path(str(module.__file__)).parent for module in (rlhf_core, rlhf_plugin_schedule))
STAGES = [
    *(f"rl/{name}.py" for name in ("advantages", "sources", "trainer", "update")),
    *(f"{SCHEDULE / name}.py" for name in ("buffered_source", "dynamic_collector")),
    *(f"training/{name}.py" for name in ("generation", "learner", "micro_batches", "policy_evaluator")),
    *(f"training/{name}.py" for name in ("policy_module", "rewards", "rollout_batch", "trace")),
]


def branches_for_rank_zero(source: str) -> list[str]:
    """Comparisons of ``X.rank`` with a number, and conditions on ``X.main`` or ``X.active``."""
    tree = ast.parse(source)
    compared = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare)
        and any(ast.unparse(side).endswith("rank") for side in (node.left, *node.comparators))
        and any(isinstance(side, ast.Constant) for side in (node.left, *node.comparators))
    ]
    conditions = [node.test for node in ast.walk(tree) if isinstance(node, ast.If | ast.IfExp)]
    named = [part for test in conditions for part in ast.walk(test) if isinstance(part, ast.Attribute)]
    return [ast.unparse(node) for node in [*compared, *(n for n in named if n.attr in ("main", "active"))]]


@pytest.mark.parametrize("file", STAGES)
def test_a_stage_has_no_branch_for_rank_zero(file: str) -> None:
    assert branches_for_rank_zero((CORE / file).read_text()) == []


@pytest.mark.parametrize(
    "line", ["x = 1 if self.comm.rank == 0 else 2", "if 0 != rank: pass", "if not self.session.main: pass"]
)
def test_a_branch_for_rank_zero_is_found(line: str) -> None:
    assert branches_for_rank_zero(line)


def test_a_rank_without_the_values_makes_nothing_of_them() -> None:
    assert _threshold([], 0.5) is None
    group = PromptGroup(Prompt("a", ({"role": "user", "content": "?"},)), (1,), 2)
    assert prompt_rows([group], [], [], [], 1) == []
