"""Scores by rule: the same text always gets the same score, at no cost and without learned bias."""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rlhf_core.config import BuildContext
from rlhf_core.rewards import Sample, Score, ScoreStatus

if TYPE_CHECKING:
    from rlhf_plugin_composite.config import FormatCheck, HollowCheck, LengthGate, ProgrammaticConfig


Counter = Callable[[str], int]
Pattern = Any
"""Of the module ``regex``: the same syntax as ``re``, with a deadline for each call."""
_regex: Any = importlib.import_module("regex")


class ProgrammaticReward:
    """Length, hollow affirmations and formats of a completion."""

    def __init__(self, config: ProgrammaticConfig, count_tokens: Counter | None = None) -> None:
        self.config = config
        self.count = {"words": lambda text: len(text.split()), "characters": len, "tokens": count_tokens}
        self.hollow = hollow_pattern(config.hollow) if config.hollow else None
        self.checks = {name: compiled(check) for name, check in config.checks.items()}

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        """One score in [0, 1] per sample, each rule's in ``parts``; status ``timeout`` where a pattern is too slow."""
        return [self._score(s.completion) for s in samples]

    def _score(self, text: str) -> Score:
        try:
            parts = self.parts(text)
        except TimeoutError:
            limit = self.config.pattern_timeout_s
            return Score.failed(ScoreStatus.TIMEOUT, f"its patterns needed more than pattern_timeout_s {limit:g}")
        return Score(combined(parts, self.config), parts)

    def parts(self, text: str) -> dict[str, float]:
        """Rule -> how well the text keeps it, in [0, 1]; 0 or 1 with ``mode: binary``."""
        ends = time.monotonic() + self.config.pattern_timeout_s
        config, binary, read = self.config, self.config.mode == "binary", text[: self.config.max_characters]
        parts: dict[str, float] = {}
        if config.length is not None:
            count = self.count[config.length.unit]
            assert count is not None, "a gate in tokens is built with a tokenizer"
            credit = length_credit(count(text), config.length)
            parts["length"] = float(credit == 1.0) if binary else credit
        if config.hollow is not None and self.hollow is not None:
            phrases = len(self.hollow.findall(read.replace("\u2019", "'"), timeout=left(ends)))
            parts["hollow"] = float(phrases == 0) if binary else max(0.0, 1.0 - config.hollow.penalty * phrases)
        for name, pattern in self.checks.items():
            check = config.checks[name]
            find = pattern.fullmatch if check.whole else pattern.search
            match = find(read.strip() if check.whole else read, timeout=left(ends))
            parts[name] = float((match is None) == check.absent)
        return parts


def left(ends: float) -> float:
    """Seconds until a deadline on the monotonic clock; a little where it has passed, for the next call to notice."""
    return max(ends - time.monotonic(), 1e-6)


def length_credit(count: int, gate: LengthGate) -> float:
    """Credit in [0, 1]: 1 from ``min`` to ``max``, falling evenly to 0 at nothing and at ``zero_at``."""
    if count < gate.min:
        return count / gate.min
    return min(1.0, max(0.0, (gate.end - count) / (gate.end - gate.max)))


def combined(parts: Mapping[str, float], config: ProgrammaticConfig) -> float:
    if config.mode == "binary" or config.combine == "min":
        return min(parts.values())
    if config.combine == "product":
        return math.prod(parts.values())
    weights = {name: config.checks[name].weight if name in config.checks else 1.0 for name in parts}
    return sum(weights[n] * v for n, v in parts.items()) / sum(weights.values())


def hollow_pattern(check: HollowCheck) -> Pattern:
    """One pattern of all phrases; groups do not capture, so that ``findall`` gives whole phrases."""
    return _regex.compile("|".join(rf"(?<!\w)(?:{p})" for p in check.patterns) or r"(?!)", _regex.IGNORECASE)


def compiled(check: FormatCheck) -> Pattern:
    """The pattern with its flags; a dot matches line ends too."""
    return _regex.compile(check.pattern, _regex.DOTALL | (_regex.IGNORECASE if check.ignore_case else 0))


def token_counter(ctx: BuildContext) -> Counter:
    """Counts tokens as the policy does, or, outside a run, as the run's model would."""
    from rlhf_core.models import Formatter, load_tokenizer

    tokenizer: Any = getattr(ctx.policy, "tokenizer", None)
    if tokenizer is None:
        tokenizer = load_tokenizer(ctx.config.model)
    formatter = Formatter(tokenizer, "auto")
    return lambda text: len(formatter.encode_text(text))
