"""How a question is put to a model: template, chat or plain text, where a completion stops, which verifier reads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

R1_ZERO = (
    "A conversation between User and Assistant. The User takes a question, and the Assistant solves it. The Assistant "
    "first thinks about the reasoning process in the mind and then provides the User with the answer. The reasoning "
    "process is enclosed within <think> </think> and answer is enclosed within <answer> </answer> tags, respectively, "
    "i.e., <think> reasoning process here </think> <answer> answer here </answer>.\n"
    "User: {prompt}\nAssistant: <think>"
)
"""The prompt of DeepSeek-R1-Zero (arXiv:2501.12948, table 1)."""


@dataclass(frozen=True)
class Style:
    """One way to ask."""

    template: str = "{prompt}"
    prompt_format: Literal["auto", "chat", "raw"] = "auto"
    stop: tuple[str, ...] = ()
    verifier: dict[str, Any] | None = None
    """None leaves the suite's own."""
    shots: bool = True
    """Whether worked examples from a data set fit it; they cannot where they would have to be written otherwise."""
    keep_stop: bool = False
    """Whether the stop string that ended a completion is part of what is judged."""


R1_ZERO_STYLE = Style(R1_ZERO, "raw", ("</answer>",), {"name": "r1_zero"}, shots=False, keep_stop=True)
QUESTION_ONLY = Style("{prompt}", "raw", (), {"name": "question_only"}, shots=False)
GSM8K_COT = Style("Q: {prompt}\nA:", "raw", ("Q:", "</s>", "<|im_end|>"), {"name": "gsm8k", "mode": "strict"})
"""The form of lm-evaluation-harness's gsm8k_cot: its question, its stop strings, and "The answer is X."."""
QUESTION_ANSWER = Style("Question: {prompt}\nAnswer:", "raw", ("Question:", "\n\n\n"))
FOLLOW_UPS = ("Question:", "Q:", "Problem:", "[Question]", "User:")
"""What a model writes when it goes on to write the next question itself."""
