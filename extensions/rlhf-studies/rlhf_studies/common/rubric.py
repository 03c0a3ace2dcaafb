"""The rubric by which pocket answers are graded."""

from __future__ import annotations

from typing import Any

from rlhf_plugin_pocket import WEIGHTS

QUESTIONS = {"right": "Is what it says true?", "plain": "Is it free of hollow affirmations?", "concise": "Is it short?"}
RUBRIC: list[dict[str, Any]] = [
    {"name": name, "question": question, "weight": WEIGHTS[name]} for name, question in QUESTIONS.items()
]
