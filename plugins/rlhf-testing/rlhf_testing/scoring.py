"""Conformance of rewards and verifiers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from rlhf_core.config import BuildContext, ComponentConfig
from rlhf_core.rewards import Sample, Score
from rlhf_testing.config import built, check_config
from rlhf_testing.report import left_alone, require
from rlhf_testing.samples import make_context, make_samples

TOLERANCE = 1e-5
IN_ORDER = "scores come in the order of the samples"
Scorer = Callable[[Sequence[Sample]], Any]


def check_reward(
    config: ComponentConfig,
    ctx: BuildContext | None = None,
    *,
    samples: Sequence[Sample] | None = None,
    tolerance: float = TOLERANCE,
) -> None:
    """Check a reward: one ``Score`` per sample, in order; a sample's score depends neither on its batch nor on the
    call; nothing a policy writes makes it raise; an empty call is fine.

    Args:
        ctx: passed to ``build``; None makes one outside any run, with a stand-in policy.
        samples: what to score; None takes sums with right, wrong, empty and garbled answers.
        tolerance: how far a score may move between batches (rewards that run a model).
    """
    check_config(config, "reward")
    reward = built(config, "reward", ctx or make_context())
    try:
        score = left_alone(config, reward.score, "score()", "samples")
        check_scores(config, score, list(samples or make_samples()), tolerance)
    finally:
        close = getattr(reward, "close", None)
        if callable(close):
            close()
            close()  # idempotent


def check_verifier(
    config: ComponentConfig, ctx: BuildContext | None = None, *, samples: Sequence[Sample] | None = None
) -> None:
    """Check a verifier: a ``Score`` for whatever a policy writes, the same every time, whatever came before; where it
    compares with a reference answer (``needs_answer``), a prompt without one is a missing score, not 0.0.

    Args:
        ctx: passed to ``build``; None makes one like a worker's, with a registry and no run.
        samples: what to check; None takes sums with right, wrong, empty and garbled answers.
    """
    check_config(config, "verifier")
    verifier = built(config, "verifier", ctx or make_context(policy=None))
    rows = list(samples or make_samples())
    verify = left_alone(config, verifier.verify, "verify()", "sample")

    def score(batch: Sequence[Sample]) -> list[Score]:
        return [verify(s) for s in batch]

    check_scores(config, score, rows, 0.0)
    if getattr(config, "needs_answer", False):
        blank = replace(rows[0], prompt=replace(rows[0].prompt, answer=None))
        blank_score = _ask(config, score, [blank])[0]
        fix = 'return Score.failed(ScoreStatus.MISSING, "..."), or set needs_answer = False'
        require(not blank_score.ok, config, "without a reference answer the score is missing", f"{blank_score}", fix)


def check_scores(config: ComponentConfig, score: Scorer, samples: Sequence[Sample], tolerance: float) -> None:
    """Count, type, independence of batch and order, determinism."""
    require(list(_ask(config, score, [])) == [], config, "no samples give no scores", "something else")
    whole = _ask(config, score, samples)
    rule = "the same samples get the same scores"
    fix = "draw no random numbers and keep no state; put a model in eval() mode"
    require(_same(whole, _ask(config, score, samples), tolerance), config, rule, "two calls differ", fix)
    single = [_ask(config, score, [s])[0] for s in samples]
    bad = _first_gap(whole, single, tolerance)
    seen = "" if bad is None else f"{samples[bad].completion[:40]!r}: {whole[bad]} in a batch, {single[bad]} alone"
    moved = _same(sorted(whole, key=_by_value), sorted(single, key=_by_value), tolerance)
    require(bad is None or not moved, config, IN_ORDER, seen, "return the first sample's score first")
    rule = "a sample's score does not depend on its batch"
    require(bad is None, config, rule, seen, "check padding and any statistic taken over the batch")
    backwards = _ask(config, score, samples[::-1])[::-1]
    bad = _first_gap(whole, backwards, tolerance)
    seen = "" if bad is None else f"{samples[bad].completion[:40]!r}: {whole[bad]}, reversed {backwards[bad]}"
    require(bad is None, config, IN_ORDER, seen)


def _ask(config: ComponentConfig, score: Scorer, samples: Sequence[Sample]) -> list[Score]:
    """Score, and check count and types."""
    try:
        answer = score(samples)
        listed = isinstance(answer, Iterable) and not isinstance(answer, (str, bytes, Mapping, Set))
        scores: list[Any] = list(answer) if listed else []
    except AssertionError:
        raise
    except Exception as error:
        shown = [s.completion[:40] for s in samples[:3]]
        rule = "nothing a policy writes makes scoring raise" if samples else "no samples give no scores"
        fix = "return Score.failed(ScoreStatus.ERROR, reason)" if samples else "return []"
        raise AssertionError(
            f"{type(config).__name__} ('{config.name}'): {rule}\n"
            f"  seen: {type(error).__name__}: {error}, for {shown!r}\n"
            f"  fix: {fix}"
        ) from error
    require(listed, config, "the scores are a list", f"{answer!r:.80}", "return one Score per sample, in order")
    require(len(scores) == len(samples), config, "there is one score per sample", f"{len(scores)} for {len(samples)}")
    for row in scores:
        rule = "each score is a Score"
        require(isinstance(row, Score), config, rule, repr(row), "return Score(value), or Score.failed(status, reason)")
        rule = "a missing score has no value"
        require(row.ok or row.value is None, config, rule, repr(row), "use Score.failed(status, reason)")
    return scores


def _by_value(score: Score) -> tuple[str, float]:
    return score.status.value, score.value or 0.0


def _same(a: Sequence[Score], b: Sequence[Score], tolerance: float) -> bool:
    return _first_gap(a, b, tolerance) is None


def _first_gap(a: Sequence[Score], b: Sequence[Score], tolerance: float) -> int | None:
    """Index of the first pair that differs."""

    def differ(x: Score, y: Score) -> bool:
        return x.status != y.status or abs((x.value or 0.0) - (y.value or 0.0)) > tolerance

    return next((i for i, (x, y) in enumerate(zip(a, b)) if differ(x, y)), None)
