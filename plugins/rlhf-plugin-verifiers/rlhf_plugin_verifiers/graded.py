"""What most verifiers here are: a comparison of a completion with its prompt, as a verdict with parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from rlhf_core.data import Prompt, message_text
from rlhf_core.rewards import Sample, Score, ScoreStatus, VerifierConfig


class Comparison(NamedTuple):
    """Whether an answer is in the required form, whether it is right, and why not."""

    format: bool
    right: bool
    detail: str


def why_refused(verifier: Any, prompt: Prompt, *, sampled: bool = False) -> str | None:
    """Why a verifier can judge no completion of a prompt, None if it can: there is no reference answer where it
    compares with one, or its grammar does not match the reference in full; and where completions are still to be
    ``sampled``, the prompt does not ask for the form in which the verifier reads answers.

    `rlhf data check`, the dry run, training, `rlhf reward score` and every verdict ask here, and nowhere else. A
    verifier that leaves the verdict to another, by the row, has ``choose(prompt)``: the other's configuration and the
    prompt as it reads it, or a ValueError with the reason.
    """
    choose = getattr(verifier, "choose", None)
    if choose is not None:
        try:
            verifier, prompt = choose(prompt)
        except ValueError as error:
            return str(error)
    if getattr(verifier, "needs_answer", False):  # a verifier need not inherit VerifierConfig
        if prompt.answer is None:
            return f"there is no reference answer, and verifier '{verifier.name}' compares with one"
        if not prompt.answer.strip():
            return "the reference answer is empty"
    check = getattr(verifier, "check_prompt", None)
    if check is not None and (why := check(prompt)) is not None:
        return why
    marks = getattr(verifier, "format_markers", ()) if sampled else ()
    unasked = [mark for mark in marks if not any(mark in message_text(m) for m in prompt.messages)]
    if unasked:
        return f"verifier '{verifier.name}' reads answers in {unasked[0]}, and the prompt does not ask for it"
    return None


class GradedVerifier:
    """A comparison with parts ``format``, ``answer`` and ``reward``; ``format_weight`` is the form's share."""

    def __init__(
        self, config: VerifierConfig, compare: Callable[[str, Prompt], Comparison], format_weight: float = 0.0
    ) -> None:
        self.config, self.compare, self.format_weight = config, compare, format_weight

    def verify(self, sample: Sample) -> Score:
        prompt = sample.prompt
        why = why_refused(self.config, prompt)
        if why is not None:
            return Score.failed(ScoreStatus.MISSING, why)
        try:
            comparison = self.compare(sample.completion, prompt)
        except (MemoryError, RecursionError) as error:
            self.compare(prompt.answer or "", prompt)  # what raises here too is not the completion's doing
            comparison = Comparison(False, False, f"judging it raised {type(error).__name__}")
        value = (1 - self.format_weight) * comparison.right + self.format_weight * comparison.format
        parts = {
            "format": float(comparison.format),
            "answer": float(comparison.right),
            "reward": float(comparison.right),
        }
        return Score(value, parts, detail=comparison.detail)
