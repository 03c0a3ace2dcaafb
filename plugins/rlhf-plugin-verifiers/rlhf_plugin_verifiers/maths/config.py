"""Configurations of the maths verifiers."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from rlhf_core.rewards import VerifierConfig

if TYPE_CHECKING:
    from rlhf_core.data import Prompt


class MathsConfig(VerifierConfig):
    """What the maths verifiers share: they compare with ``Prompt.answer``, which must parse."""

    format_weight: float = Field(default=0.0, ge=0, lt=1)
    """Share of the value given for the required form alone, right or wrong."""

    def check_prompt(self, prompt: Prompt) -> str | None:
        """A reference answer is in the grammar of ``maths.reference``."""
        from rlhf_plugin_verifiers.maths.reference import why_unusable

        return None if prompt.answer is None else why_unusable(prompt.answer)


class Gsm8kConfig(MathsConfig):
    """Compares the number that a completion states with the reference answer (Cobbe et al. 2021, arXiv:2110.14168).

    What follows a question that the model asks itself ("Question: ...") is not read. Part ``format`` says whether the
    strict form is there whatever the mode, so that drift away from it shows.
    """

    name: str = "gsm8k"
    component: ClassVar[str] = "rlhf_plugin_verifiers.maths.gsm8k:gsm8k_verifier"
    mode: Literal["strict", "hash", "last", "lenient"] = "lenient"
    """What counts as stated: ``strict`` the first "The answer is X.", as lm-evaluation-harness's gsm8k_cot does;
    ``hash`` the number after the last ``####``; ``last`` the last number; ``lenient`` whichever of "the answer is",
    ``\\boxed{}`` and ``####`` comes last, otherwise the last number."""

    def check_prompt(self, prompt: Prompt) -> str | None:
        """A reference answer is a number and nothing else, or a GSM8K solution that ends with ``#### X``."""
        from rlhf_plugin_verifiers.numeric import why_no_number

        return None if prompt.answer is None else why_no_number(prompt.answer)


class MathConfig(MathsConfig):
    """Symbolic equality of the stated answer and the reference, on math-verify (numbers, fractions, percent, units,
    sets, tuples, intervals, matrices, equations, multiple choice)."""

    name: str = "math"
    component: ClassVar[str] = "rlhf_plugin_verifiers.maths.verifier:math_verifier"
    mode: Literal["strict", "lenient"] = "lenient"
    """``strict`` reads only the last ``\\boxed{}`` (or a list of adjacent ones); ``lenient`` then "the answer is",
    then the last formula or number."""
    targets: tuple[Literal["latex", "expr"], ...] = ("latex", "expr")
    """What an answer outside a box may be written as: LaTeX between dollars, plain numbers and expressions."""
    digits: int = Field(default=6, ge=1, le=15)
    """Decimal places that count when one side is a decimal number."""
    strict_variables: bool = True
    """Whether f(x) and f(y) differ."""
    relations_as_sets: bool = False
    """Whether -2 <= x <= 7 equals a reference that is the interval [-2, 7]."""


class MinervaMathConfig(MathConfig):
    """Only what stands in the last ``\\boxed{}`` is compared; no fallback, so a policy cannot drift away from the form
    (Lewkowycz et al. 2022, arXiv:2206.14858)."""

    name: str = "minerva_math"
    mode: Literal["strict", "lenient"] = "strict"


class R1ZeroConfig(MathsConfig):
    """``</think> <answer> ... </answer>`` with the right answer (DeepSeek-R1-Zero, arXiv:2501.12948).

    The prompt ends with ``<think>``. Parts ``format`` (the tags are there), ``answer`` (what is in them is right, only
    counted with the format) and ``reward``.
    """

    name: str = "r1_zero"
    component: ClassVar[str] = "rlhf_plugin_verifiers.maths.tags:r1_zero_verifier"
    mode: Literal["strict", "lenient", "compatible"] = "strict"
    """``strict``, the default, wants exactly ``</think> <answer>`` and one ``</answer>`` at the end; ``lenient`` allows
    any space between the tags, and text after them. ``compatible`` has the format rule of Dr. GRPO's published grader,
    which courses use too, for counts that are compared with theirs: format is 1 wherever ``</think> <answer>`` and
    ``</answer>`` occur, and all that follows the last ``<answer>`` is the answer. The answers themselves are compared
    as in the other modes."""
    form_in_prompt: bool = True
    """Refuse a run whose prompts never ask for ``<answer>``: its rewards would all be 0. False for a policy that was
    taught the tags before."""

    @property
    def format_markers(self) -> tuple[str, ...]:
        return ("<answer>",) if self.form_in_prompt else ()


class QuestionOnlyConfig(MathsConfig):
    """The last ``\\boxed{}`` of an answer to the bare question (Liu et al. 2025, arXiv:2503.20783)."""

    name: str = "question_only"
    component: ClassVar[str] = "rlhf_plugin_verifiers.maths.tags:question_only_verifier"
    mode: Literal["strict", "lenient"] = "strict"
    """``strict`` wants the box; ``lenient`` falls back as ``math`` does, without the format part."""
