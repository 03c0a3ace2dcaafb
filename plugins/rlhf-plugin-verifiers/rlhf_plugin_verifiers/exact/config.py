"""Configurations of the exact verifiers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, model_validator

from rlhf_core.config import ConfigError
from rlhf_core.rewards import VerifierConfig

if TYPE_CHECKING:
    from rlhf_core.data import Prompt


class ExactConfig(VerifierConfig):
    """The answer is the reference, character for character but for what the settings forgive."""

    name: str = "exact"
    component: ClassVar[str] = "rlhf_plugin_verifiers.exact.verifiers:string_verifier"
    mode: Literal["strict", "lenient"] = "strict"
    """``strict``: the whole completion is the answer; ``lenient``: what follows the last "answer is" or "Answer:", or
    else the last line."""
    ignore_case: bool = True
    ignore_punctuation: bool = True
    """Quotes, stars and backticks around the answer and punctuation after it do not count; what stands before it or
    within it does: ``-5`` is not ``5``, and ``C++`` is not ``C``."""


class AnswerTagsConfig(VerifierConfig):
    """Words between ``<answer>`` and ``</answer>``: the reference, but for case, articles and punctuation.

    For short answers in words, after SQuAD's comparison (Rajpurkar et al. 2016, arXiv:1606.05250, section 5), except
    that marks within numbers and names count. Part ``format`` says whether the tags are there.
    """

    name: str = "answer_tags"
    component: ClassVar[str] = "rlhf_plugin_verifiers.exact.verifiers:answer_tags_verifier"
    mode: Literal["strict", "lenient"] = "strict"
    """``strict``: one pair of tags, at the end; ``lenient``: the last pair after the reasoning, wherever it stands."""
    ignore_case: bool = True
    ignore_articles: bool = True
    """"a", "an" and "the" do not count; a capital A that is no article does (``vitamin A``)."""
    ignore_punctuation: bool = True
    """Quotes, stars, hyphens between words and punctuation do not count; signs, decimal points and ``C++`` do."""
    format_weight: float = Field(default=0.0, ge=0, lt=1)
    """Share of the value given for the tags alone."""
    form_in_prompt: bool = True
    """Refuse a run whose prompts never ask for ``<answer>``: its rewards would all be 0. False for a policy that was
    taught the tags before."""

    @property
    def format_markers(self) -> tuple[str, ...]:
        return ("<answer>",) if self.form_in_prompt else ()

    def check_prompt(self, prompt: Prompt) -> str | None:
        """The reference must hold an answer, without the tags."""
        if prompt.answer is None:
            return None
        if "<answer>" in prompt.answer or "</answer>" in prompt.answer:
            return f"the reference answer {prompt.answer[:60]!r} holds the tags themselves; give what stands in them"
        return None


class ChoiceConfig(VerifierConfig):
    """The letter of a multiple-choice question; the reference is a letter, as in ``B``, ``(B)`` or ``(B) Paris``."""

    name: str = "choice"
    component: ClassVar[str] = "rlhf_plugin_verifiers.exact.verifiers:choice_verifier"
    mode: Literal["strict", "lenient"] = "lenient"
    """``strict``: the completion is the letter and nothing else, boxed or not; ``lenient``: the letter that it picks
    (boxed, stated as the answer, leading, or the last that stands alone)."""

    def check_prompt(self, prompt: Prompt) -> str | None:
        from rlhf_plugin_verifiers.maths.choice import LETTERS, option_letter

        if prompt.answer is None or option_letter(prompt.answer) is not None:
            return None
        return f"the reference answer {prompt.answer[:60]!r} is not one of the letters {LETTERS[0]} to {LETTERS[-1]}"


class RegexConfig(VerifierConfig):
    """A regular expression: one with a group cuts the answer out, one without is itself the test."""

    name: str = "regex"
    component: ClassVar[str] = "rlhf_plugin_verifiers.exact.verifiers:regex_verifier"
    needs_answer: ClassVar[bool] = False
    pattern: str = Field(min_length=1)
    """Python syntax; ``.`` matches line breaks too. Example: ``"ANSWER: (.+?)\\\\."``"""
    mode: Literal["strict", "lenient"] = "lenient"
    """``strict``: the pattern matches the whole completion; ``lenient``: its last match anywhere counts."""
    ignore_case: bool = False

    @model_validator(mode="after")
    def _compiles(self) -> RegexConfig:
        try:
            groups = re.compile(self.pattern).groups
        except re.error as error:
            raise ConfigError(
                f"pattern {self.pattern!r} is not a regular expression",
                why=str(error),
                fix=r"for a GSM8K solution: '#### (.+)'; a bracket itself is \(",
            ) from error
        if groups > 1:
            raise ConfigError(
                f"pattern {self.pattern!r} has {groups} groups, at most one is compared",
                fix="write the others as (?:...)",
            )
        return self

    def check_prompt(self, prompt: Prompt) -> str | None:
        """A pattern with a group needs a reference answer."""
        if not str(prompt.answer or "").strip() and re.compile(self.pattern).groups:
            return "the pattern's group is compared with the reference answer, and there is none"
        return None


class JsonSchemaConfig(VerifierConfig):
    """JSON that fits a schema: the configured one, or that of the row's column ``schema``. Needs ``jsonschema``."""

    name: str = "json_schema"
    component: ClassVar[str] = "rlhf_plugin_verifiers.exact.schema:schema_verifier"
    needs_answer: ClassVar[bool] = False
    definition: dict[str, Any] | None = None
    """The schema; None takes the row's."""
    mode: Literal["strict", "lenient"] = "lenient"
    """``strict``: the whole completion is JSON; ``lenient``: it may stand in a code fence, or be the longest object
    or array of the text."""
    format_weight: float = Field(default=0.0, ge=0, lt=1)
    """Share of the value given for JSON of any kind."""

    def check_prompt(self, prompt: Prompt) -> str | None:
        from rlhf_plugin_verifiers.exact.schema import why_unusable

        return why_unusable(self.definition if self.definition is not None else prompt.meta.get("schema"))
