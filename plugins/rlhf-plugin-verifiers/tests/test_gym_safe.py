"""No reasoning-gym task runs what a model wrote as its answer."""

from __future__ import annotations

import contextlib
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.data import Prompt
from rlhf_core.rewards import Sample, Score
from rlhf_plugin_verifiers.gym.config import GymDataConfig, GymVerifierConfig
from rlhf_plugin_verifiers.gym.source import GymSource, create, import_reasoning_gym
from rlhf_plugin_verifiers.gym.verifier import is_arithmetic, may_be_scored

pytestmark = pytest.mark.skipif(find_spec("reasoning_gym") is None, reason="reasoning_gym is not installed")


def score(task: str, answer: str | None = None, **settings: Any) -> Score:
    """Verdict on an answer to a task's first problem; by default its own."""
    row = GymSource(GymDataConfig(task=task, settings=settings, size=1, heldout_size=0)).rows("train")[0]
    prompt = Prompt(
        row["id"],
        ({"role": "user", "content": row["prompt"]},),
        row["answer"],
        "gym",
        {"reasoning_gym": row["reasoning_gym"]},
    )
    stated = row["answer"] if answer is None else answer
    return GymVerifierConfig().build(None).verify(Sample(prompt, f"<answer>{stated}</answer>"))  # type: ignore[arg-type]


def attacks(file: Path) -> list[str]:
    """Ways to write a file from within an expression."""
    call = f"__import__('pathlib').Path({str(file)!r}).touch()"
    split = f"getattr(__builtins__, 'op' + 'en')({str(file)!r}, 'w')"
    return [
        call,
        f"open({str(file)!r}, 'w')",
        split,
        f"[{call!r}]",
        f"sin({call!r})",
        f'f"{{{call}}}"',
        f"{call} + 5!",
        f"[c for c in [open({str(file)!r}, 'w')]]",
        f"\uff3f\uff3fimport\uff3f\uff3f('os').mkdir({str(file)!r})",
        f"(lambda: open({str(file)!r}, 'w'))()",
    ]


@pytest.mark.parametrize("task", ["countdown", "puzzle24", "simple_integration", "spiral_matrix", "n_queens"])
def test_an_answer_is_not_run(task: str, tmp_path: Path) -> None:
    for answer in attacks(tmp_path / "written"):
        assert (score(task, answer).value or 0.0) <= 0.05
        assert list(tmp_path.iterdir()) == [], answer


@pytest.mark.long  # five of them: above
@pytest.mark.slow
def test_no_task_runs_its_answer(tmp_path: Path) -> None:
    """Of every task: what its score function may be shown writes no file, and its own answer is still right."""
    left_out: list[str] = []
    for name in import_reasoning_gym().factory.DATASETS:
        try:
            task = create(name, {}, 0, 1)
            problem = task[0]
        except Exception:  # some need a file or a library that is not here
            left_out.append(name)
            continue
        for answer in attacks(tmp_path / "written"):
            if may_be_scored(answer, task):
                with contextlib.suppress(Exception):
                    task.score_answer(answer=answer, entry=problem)
            assert list(tmp_path.iterdir()) == [], (name, answer)
        assert problem["answer"] is None or may_be_scored(problem["answer"], task), name
    assert len(left_out) < 5, left_out


def test_honest_answers_still_count() -> None:
    assert score("countdown").value == 1.0
    assert score("simple_integration").value == 1.0
    assert score("simple_integration", "log(0)").value == 0.0
    assert score("polynomial_multiplication").value == 1.0
    assert score("n_queens").value == 1.0
    assert score("spiral_matrix", min_n=3, max_n=3).value == 1.0
    numbers = score("string_insertion").detail.removeprefix("stated ").strip("'")
    assert score("string_insertion", str(list(numbers))).value == 0.1  # the task's own credit for a Python list


def test_what_only_makes_problems_may_evaluate() -> None:
    """codeio runs programs to make its problems, basic_arithmetic evaluates them; both compare answers as texts."""
    right = create("codeio", {}, 0, 1)[0]["answer"]
    other_order = json.dumps({"also": True, **json.loads(right)}, separators=(",", ":"))
    assert score("codeio", json.dumps(json.loads(right), indent=1)).value == 1.0
    assert 0 < (score("codeio", f"(It is {right})").value or 0.0) < 1
    assert 0 < (score("codeio", other_order).value or 0.0) < 1
    assert (score("basic_arithmetic", f"it's {create('basic_arithmetic', {}, 0, 1)[0]['answer']}").value or 0.0) > 0


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("x**2/2 + sin(3*x) + C", True),
        ("(1 + 2) * 3 - 4/5", True),
        ("-exp(-x)", True),
        ("x.args", False),
        ("open(x)", False),
        ("sin('x')", False),
        ("sin(x=1)", False),
        ("__x__ + 1", False),
        ("(x", False),
        ("x + 1 # y", False),
        ("lambda: x", False),
        ("1\n+ 1", False),
    ],
)
def test_arithmetic(text: str, good: bool) -> None:
    assert is_arithmetic(text) is good
