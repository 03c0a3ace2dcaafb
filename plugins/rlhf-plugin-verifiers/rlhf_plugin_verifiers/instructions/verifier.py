"""Whether a response follows its instructions, strictly and loosely."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from rlhf_core.data import Prompt
from rlhf_core.rewards import Sample, Score, ScoreStatus
from rlhf_plugin_verifiers.instructions.arguments import why_wrong
from rlhf_plugin_verifiers.instructions.by_text import BY_TEXT, named_checks
from rlhf_plugin_verifiers.instructions.lexicon import installed

if TYPE_CHECKING:
    from rlhf_plugin_verifiers.instructions.config import IFEvalConfig


Check = Callable[[str], bool]
Reference = Literal["published", "text"]
INSTRUCTIONS = named_checks("published")
"""The published checks."""
NEEDS_LANGUAGE = frozenset(
    {
        "language:response_language",
        "change_case:english_capital",
        "change_case:english_lowercase",
        "rlvr:validate_response_language",
    }
)
RLVR_RULES = {"N": "frequency", "options": "keywords"}
"""Argument of a function of RLVR -> the argument that has its rule: N may be 0, options are a list."""


def checks(
    ids: Sequence[str], arguments: Sequence[Mapping[str, Any] | None], reference: Reference = "text"
) -> list[Check]:
    """The checks of one row, without the prefix ``en:`` and arguments that are None; raises ValueError."""
    if len(ids) != len(arguments):
        raise ValueError(f"{len(ids)} instructions but {len(arguments)} kwargs")
    return [_check(name.removeprefix("en:"), kwargs, reference) for name, kwargs in zip(ids, arguments)]


def _check(name: str, kwargs: Mapping[str, Any] | None, reference: Reference) -> Check:
    published = INSTRUCTIONS.get(name)
    if published is None:
        raise ValueError(f"unknown instruction '{name}'{_near(name)}")
    if name in NEEDS_LANGUAGE and not installed():
        raise ValueError(f"instruction '{name}' needs langdetect: pip install 'rlhf-plugin-verifiers[language]'")
    if not isinstance(kwargs or {}, Mapping):
        raise ValueError(f"the kwargs of instruction '{name}' are {kwargs!r}, not an object of arguments")
    names = [
        p.name for p in inspect.signature(published).parameters.values() if p.kind is inspect.Parameter.KEYWORD_ONLY
    ]
    given: dict[str, Any] = {n: (kwargs or {}).get(n) for n in names}
    if why := why_wrong(given, RLVR_RULES if name.startswith("rlvr:") else None):
        raise ValueError(f"instruction '{name}' {why}")
    spans_words = reference == "text" and name == "repeat:repeat_span"
    if spans_words and given["n_end"] >= len(given["prompt_to_repeat"].split()):
        why = f"has 'n_end' = {given['n_end']}, beyond the last word of 'prompt_to_repeat'"
        raise ValueError(f"instruction '{name}' {why}; if it is the index of a character, set reference: published")
    return partial(BY_TEXT.get(name, published) if reference == "text" else published, **given)


def _near(name: str) -> str:
    import difflib

    near = difflib.get_close_matches(name, INSTRUCTIONS, n=1)
    return f"; did you mean '{near[0]}'?" if near else ""


class Followed(NamedTuple):
    """Which instructions a response follows, one verdict each."""

    strict: tuple[bool, ...]
    loose: tuple[bool, ...]


def variants(text: str) -> list[str]:
    """What the loose mode tries: without stars, without first line, without last line, in every combination."""
    lines = text.split("\n")
    cut = [text, *("\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1]))]
    return [*cut, *(c.replace("*", "") for c in cut)]


def judge(text: str, instructions: Sequence[Check]) -> Followed:
    """Verdicts for every instruction; an empty response follows none."""
    tried = [v for v in variants(text) if v.strip()]
    strict = tuple(bool(text.strip()) and check(text) for check in instructions)
    return Followed(strict, tuple(s or any(map(check, tried)) for s, check in zip(strict, instructions)))


class InstructionVerifier:
    """See :class:`IFEvalConfig`."""

    def __init__(self, config: IFEvalConfig) -> None:
        self.config = config

    def verify(self, sample: Sample) -> Score:
        why = why_unusable(sample.prompt, self.config.reference)
        if why is not None:
            return Score.failed(ScoreStatus.MISSING, why)
        meta = sample.prompt.meta
        followed_by_mode = judge(
            sample.completion, checks(meta["instruction_id_list"], meta["kwargs"], self.config.reference)
        )
        instruction_verdicts = followed_by_mode.strict if self.config.mode == "strict" else followed_by_mode.loose
        share = sum(instruction_verdicts) / len(instruction_verdicts)
        parts = {"answer": float(all(instruction_verdicts)), "instructions": share}
        for name, verdicts in zip(Followed._fields, followed_by_mode):
            parts |= {name: float(all(verdicts)), f"{name}_instructions": sum(verdicts) / len(verdicts)}
        broken = [i for i, followed in zip(meta["instruction_id_list"], instruction_verdicts) if not followed]
        return Score(
            share if self.config.value == "mean" else float(all(instruction_verdicts)),
            parts,
            detail=f"not followed: {', '.join(broken)}" if broken else "all followed",
        )


def why_unusable(prompt: Prompt, reference: Reference) -> str | None:
    """Why a row's instructions cannot be checked; None if they can."""
    ids, arguments = prompt.meta.get("instruction_id_list"), prompt.meta.get("kwargs")
    if not isinstance(ids, (list, tuple)) or not isinstance(arguments, (list, tuple)) or not ids:
        return "the row has no 'instruction_id_list' and 'kwargs', two lists of equal length"
    try:
        checks([str(i) for i in ids], arguments, reference)
    except ValueError as error:
        return str(error)
    return None
