"""A reasoning-gym task's own score of an answer."""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any

from rlhf_core.rewards import Sample, Score, ScoreStatus
from rlhf_plugin_verifiers.gym.config import GymVerifierConfig
from rlhf_plugin_verifiers.gym.source import create, import_reasoning_gym
from rlhf_plugin_verifiers.maths.answer import boxed_answer
from rlhf_plugin_verifiers.maths.text import after_reasoning

_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


class GymVerifier:
    """See :class:`GymVerifierConfig`. The problem is generated again from its seed and index, or the row's copy taken
    (see ``GymSource``). An answer that a task's ``eval`` or sympy's ``parse_expr`` would run as Python is wrong."""

    def __init__(self, config: GymVerifierConfig) -> None:
        self.config = config
        import_reasoning_gym()  # while the worker starts, and not on the first call's time

    def verify(self, sample: Sample) -> Score:
        why = self.config.check_prompt(sample.prompt)
        if why is not None:
            return Score.failed(ScoreStatus.MISSING, why)
        key = sample.prompt.meta["reasoning_gym"]
        task, problem = _problem(key["task"], json.dumps(key["settings"]), key["seed"], key["index"])
        if problem["question"] != key["problem"]["question"]:
            problem = key["problem"]
        text = after_reasoning(sample.completion)
        tagged = _TAGGED.findall(text)
        untagged = None if self.config.mode == "strict" else boxed_answer(text) or text.strip()
        stated = tagged[-1].strip() if tagged else untagged
        if stated is not None and stated != problem["answer"] and not may_be_scored(stated, task):
            parts = {"format": float(bool(tagged)), "answer": 0.0, "reward": 0.0}
            return Score(
                0.0, parts, detail=f"{stated[:200]!r} is neither a literal nor arithmetic, and was not evaluated"
            )
        score = float(task.score_answer(answer=stated, entry=problem)) if stated is not None else 0.0
        right = float(score >= 1.0)
        value = right if self.config.value == "right" else score
        parts = {"format": float(bool(tagged)), "answer": right, "reward": value}
        return Score(value, parts, detail="no answer tags" if stated is None else f"stated {stated[:200]!r}")


@lru_cache(maxsize=256)
def _problem(task: str, settings: str, seed: int, index: int) -> tuple[Any, Any]:
    """The generator and one of its problems; an item depends on seed and index only."""
    problems = create(task, json.loads(settings), seed, index + 1)
    return problems, problems[index]


MAX_CHARACTERS = 10_000
_FUNCTIONS = """sin cos tan sec csc cot asin acos atan asec acsc acot atan2 sinh cosh tanh sech csch coth asinh
    acosh atanh exp log ln sqrt cbrt root Abs abs sign floor ceiling Rational Integer"""
FUNCTIONS = frozenset(_FUNCTIONS.split())
"""What an arithmetic answer may call."""
_WITHOUT_CALLS = re.compile(r"""[^()"'`\\#]*""")
_ARITHMETIC = (ast.Expression, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.Tuple, ast.List, ast.Load)


def may_be_scored(answer: str, task: object) -> bool:
    """Whether a score function cannot run what is in an answer: Python literals for ``eval``, arithmetic for sympy's
    parser, a text without brackets and quotes for either, everything for a task that evaluates nothing."""
    evaluates, parses = _runs(type(task))
    if not (evaluates or parses):
        return True
    if len(answer) > MAX_CHARACTERS or "__" in answer:
        return False
    if _WITHOUT_CALLS.fullmatch(answer):
        return True
    return is_arithmetic(answer) if parses else is_literal(answer)


@cache
def _runs(task: type) -> tuple[bool, bool]:
    """Whether what scores a task's answers (not what makes problems) calls ``eval`` or ``exec``, and sympy's parser."""
    classes = [c for c in task.__mro__ if c.__module__.partition(".")[0] not in sys.stdlib_module_names]
    calls = set(re.findall(r"\b(eval|exec|parse_expr|sympify|S)\(", _reached(classes)))
    sympy = any("sympy" in inspect.getsource(sys.modules[c.__module__]) for c in classes)
    return bool({"eval", "exec"} & calls), sympy and bool(calls - {"eval", "exec"})


def _reached(classes: Sequence[type]) -> str:
    """Source of ``score_answer`` and of each function and class of its package that it, or one of these, mentions."""
    packages = {c.__module__.partition(".")[0] for c in classes}
    namespaces = [vars(c) for c in classes] + [vars(sys.modules[c.__module__]) for c in classes]
    texts: dict[Any, str] = {}
    todo = {"score_answer"}
    while todo:
        named = [namespace[name] for name in todo for namespace in namespaces if name in namespace]
        parts = [inspect.unwrap(getattr(member, "__func__", member)) for member in named]
        new = {
            part: inspect.getsource(part)
            for part in parts
            if inspect.isfunction(part) or inspect.isclass(part)
            if part.__module__.partition(".")[0] in packages and part not in texts
        }
        texts |= new
        namespaces += [vars(sys.modules[part.__module__]) for part in new]
        todo = set(re.findall(r"\w+", " ".join(new.values())))
    return "\n".join(texts.values())


def is_literal(text: str) -> bool:
    """Whether a text is a Python literal: numbers, strings, lists."""
    try:
        ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return False
    return True


def is_arithmetic(text: str) -> bool:
    """Whether a text is one line of numbers, names, operators and calls of :data:`FUNCTIONS`, without strings."""
    if re.search(r"[\n\r\\#]", text.strip()):
        return False
    try:
        return all(_arithmetic(node) for node in ast.walk(ast.parse(text.strip(), mode="eval")))
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return False


def _arithmetic(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int | float | complex)
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS and not node.keywords
    return isinstance(node, _ARITHMETIC) or (isinstance(node, ast.Name) and "__" not in node.id)
