"""Whether a response follows its instructions, strictly and loosely."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from rlhf_core.data import Prompt
from rlhf_core.rewards import Sample, Score, ScoreStatus
from rlhf_plugin_verifiers.instructions.registry import Check, checks

if TYPE_CHECKING:
    from rlhf_plugin_verifiers.instructions.config import IFEvalConfig


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
        why = why_unusable(sample.prompt)
        if why is not None:
            return Score.failed(ScoreStatus.MISSING, why)
        meta = sample.prompt.meta
        followed_by_mode = judge(sample.completion, checks(meta["instruction_id_list"], meta["kwargs"]))
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


def why_unusable(prompt: Prompt) -> str | None:
    """Why a row's instructions cannot be checked; None if they can."""
    ids, arguments = prompt.meta.get("instruction_id_list"), prompt.meta.get("kwargs")
    if not isinstance(ids, (list, tuple)) or not isinstance(arguments, (list, tuple)) or not ids:
        return "the row has no 'instruction_id_list' and 'kwargs', two lists of equal length"
    try:
        checks([str(i) for i in ids], arguments)
    except ValueError as error:
        return str(error)
    return None
