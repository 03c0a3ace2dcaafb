"""Reward functions of R1-Zero's prompt and of the bare question: ``f(response, ground_truth)`` returns three parts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from rlhf_plugin_verifiers.maths.answer import is_formula
from rlhf_plugin_verifiers.maths.equal import Rules
from rlhf_plugin_verifiers.maths.verifier import Verdict, answer_verifier, grade_math

if TYPE_CHECKING:
    from rlhf_plugin_verifiers.graded import GradedVerifier
    from rlhf_plugin_verifiers.maths.config import QuestionOnlyConfig, R1ZeroConfig

R1_ZERO_PROMPT = Path(__file__).with_name("r1_zero_prompt.txt").read_text().removesuffix("\n")
"""Goes into ``dataset.prompt_template``; the model must then be prompted without a chat template."""
Mode = Literal["strict", "lenient", "compatible"]
_LENIENT = re.compile(r"</think>\s*<answer>(.*?)</answer>", re.DOTALL)


def r1_zero_reward_fn(response: str, ground_truth: str, mode: Mode = "strict") -> dict[str, float]:
    """Reward of a completion of the R1-Zero prompt: ``reward``, ``format_reward`` and ``answer_reward``, each 0 or 1.

    The format is ``</think> <answer> ... </answer>``; an answer counts only in it. The default is ``strict``, the
    reward for training: nothing follows the answer, and there is one. ``compatible`` has the format rule of Dr. GRPO's
    published grader, which courses use too: counts by category are then comparable with theirs.
    """
    if mode not in get_args(Mode):
        raise ValueError(f"mode {mode!r} is none of {', '.join(get_args(Mode))}")
    return _as_rewards(grade_tags(response, ground_truth, mode=mode))


def question_only_reward_fn(response: str, ground_truth: str) -> dict[str, float]:
    """Reward of an answer to the bare question: what its last ``\\boxed{}`` holds; parts as in `r1_zero_reward_fn`."""
    return _as_rewards(grade_math(response, ground_truth, Rules(), boxed_only=True))


def grade_tags(completion: str, gold: str, *, mode: Mode) -> Verdict:
    """Judge what stands between the answer tags; modes as in ``R1ZeroConfig``."""
    inside = tagged_answer(completion, mode=mode)
    if inside is None:
        return Verdict(False, False, "")
    trailing = mode == "compatible" and not completion.rstrip().endswith("</answer>")
    readable = not trailing or is_formula(inside)  # text after the tag is part of the answer there: "8 Bye" is not 8
    return Verdict(True, readable and grade_math(inside, gold, Rules()).right, inside.strip())


def tagged_answer(completion: str, *, mode: Mode) -> str | None:
    """Text of the answer tags, None where the format is broken: ``strict`` allows one answer at the end, ``lenient``
    takes the last, ``compatible`` all after the last ``<answer>``."""
    if mode == "compatible":
        if "</think> <answer>" not in completion or "</answer>" not in completion:
            return None
        return completion.rpartition("<answer>")[2].replace("</answer>", "")
    if mode == "lenient":
        answers = _LENIENT.findall(completion)
        return answers[-1] if answers else None
    before, opened, remainder = completion.partition("</think> <answer>")
    inside, closed, after = remainder.partition("</answer>")
    clean = opened and closed and not after.strip() and "<answer>" not in before + inside and "</think>" not in before
    return inside if clean else None


def r1_zero_verifier(config: R1ZeroConfig) -> GradedVerifier:
    return answer_verifier(config, lambda text, gold: grade_tags(text, gold, mode=config.mode))


def question_only_verifier(config: QuestionOnlyConfig) -> GradedVerifier:
    strict = config.mode == "strict"
    return answer_verifier(config, lambda text, gold: grade_math(text, gold, Rules(), boxed_only=strict))


def _as_rewards(verdict: Verdict) -> dict[str, float]:
    right = float(verdict.format and verdict.right)
    return {"format_reward": float(verdict.format), "answer_reward": right, "reward": right}
