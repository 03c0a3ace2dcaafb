"""A reasoning-gym task's own score of an answer."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from rlhf_core.rewards import Sample, Score, ScoreStatus
from rlhf_plugin_verifiers.gym.safe import may_be_scored
from rlhf_plugin_verifiers.gym.source import create, import_reasoning_gym
from rlhf_plugin_verifiers.maths.answer import boxed_answer

if TYPE_CHECKING:
    from rlhf_plugin_verifiers.gym.config import GymVerifierConfig

_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


class GymVerifier:
    """See :class:`GymVerifierConfig`.

    The problem is generated again here, in the worker, from its seed and index; where that gives another one (see
    ``GymSource``), the row's copy is taken, whose metadata went through JSON. An answer that the task would run as
    Python is wrong, see :mod:`rlhf_plugin_verifiers.gym.safe`.
    """

    def __init__(self, config: GymVerifierConfig) -> None:
        self.config = config
        import_reasoning_gym()  # while the worker starts, and not on the first call's time

    def verify(self, sample: Sample) -> Score:
        """Return the task's score with parts ``format`` (answer tags), ``answer`` (full score) and ``reward``."""
        why = self.config.check_prompt(sample.prompt)
        if why is not None:
            return Score.failed(ScoreStatus.MISSING, why)
        key = sample.prompt.meta["reasoning_gym"]
        task, problem = _problem(key["task"], json.dumps(key["settings"]), key["seed"], key["index"])
        if problem["question"] != key["problem"]["question"]:
            problem = key["problem"]
        tagged = _TAGGED.findall(sample.completion)
        stated = tagged[-1].strip() if tagged else self._untagged(sample.completion)
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

    def _untagged(self, completion: str) -> str | None:
        return None if self.config.mode == "strict" else boxed_answer(completion) or completion.strip()


@lru_cache(maxsize=256)
def _problem(task: str, settings: str, seed: int, index: int) -> tuple[Any, Any]:
    """The generator and one of its problems; an item depends on seed and index only."""
    problems = create(task, json.loads(settings), seed, index + 1)
    return problems, problems[index]
