"""Checks of what components return: which one returned what, and what was expected."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Generator, Hashable, Iterable, Mapping, Sequence, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_core.plugins.component_calls import component_errors, label_of, time_limit
from rlhf_core.plugins.protocols import ReportsProgress, RewardModel, RolloutEngine, TurnStream
from rlhf_core.types.errors import PluginError, error_text
from rlhf_core.types.frozen import frozen
from rlhf_core.types.rollouts import (
    Advantages,
    MalformedRollout,
    PromptGroup,
    Rollout,
    RolloutRequest,
    Sample,
    SamplingParams,
    Score,
    ScoreStatus,
    TokenValues,
)

UNORDERED = (str, bytes, Set, Mapping)
"""What can be iterated over, but is not a list with one value per sample."""


def contract_error(component: str, returned: str, expected: str) -> PluginError:
    """The error for a component that does not keep its contract."""
    return PluginError(
        f"{component} returned {returned}",
        why=f"expected {expected}",
        fix="fix the plugin (rlhf_testing has the checks), or choose another",
    )


def raising_line(error: BaseException) -> str:
    """The line that raised. Example: `` (rewards.py, line 8)``"""
    frames = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in frames if "site-packages" not in frame.filename] or frames
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""


class CheckedReward:
    """A reward whose every answer is checked; an exception becomes status ``error`` for each sample, never 0.0."""

    def __init__(self, reward: RewardModel, label: str = "") -> None:
        self.reward, self.label = reward, label or label_of(reward)

    def score(self, samples: Sequence[Sample]) -> list[Score]:
        """One score per sample, in order."""
        with time_limit("reward", f"score() of {self.label} for {len(samples)} completions"):
            try:
                answer: Any = self.reward.score(list(samples))
                scores = list(answer) if isinstance(answer, Iterable) and not isinstance(answer, UNORDERED) else answer
            except (Exception, SystemExit) as error:
                text = f"{error_text(error)}{raising_line(error)}"
                return [Score.failed(ScoreStatus.ERROR, text)] * len(samples)
        if not isinstance(scores, list):
            raise contract_error(self.label, f"{scores!r:.80}", f"a list of {len(samples)} Scores")
        if len(scores) != len(samples):
            raise contract_error(
                self.label, f"{len(scores)} scores for {len(samples)} samples", "one Score per sample, in order"
            )
        for sample, score in zip(samples, scores):
            if not isinstance(score, Score):
                returned = f"{type(score).__name__} {score!r:.80} for '{sample.prompt.id}'"
                raise contract_error(self.label, returned, "a Score")
        return scores


def score_samples(reward: RewardModel, samples: Sequence[Sample], label: str = "") -> Sequence[Score]:
    """One score per sample, in order; an exception becomes status ``error`` for each sample, never 0.0.

    Raises:
        PluginError: the reward returned something else than one ``Score`` per sample.
        DeadlineExceeded: it hangs; in a run only, see `DeadlineSettings`.
    """
    return CheckedReward(reward, label).score(samples)


class CheckedAdvantage:
    """An estimator that sees read-only copies, and whose every answer is checked."""

    def __init__(self, estimator: Any, label: str = "") -> None:
        self.estimator, self.label = estimator, label or label_of(estimator)

    def estimate(
        self,
        rollouts: Sequence[Rollout],
        scores: Sequence[Score],
        group_ids: Sequence[int],
        values: Sequence[TokenValues] | None,
    ) -> Advantages:
        """One advantage per rollout; the estimator is not called for none."""
        if not rollouts:
            return Advantages([])
        critic_values = () if values is None else (list(map(frozen, values)),)
        arguments = (list(map(frozen, rollouts)), list(map(frozen, scores)), list(group_ids), *critic_values)
        with component_errors(self.label, "estimate()"):
            answer = self.estimator.estimate(*arguments)
        advantages = check_advantages(answer, rollouts, self.label)
        return advantages if values is None else check_returns(advantages, rollouts, self.label)


def check_advantages(estimate: Any, rollouts: Sequence[Rollout], label: str) -> Advantages:
    """Return what an estimator returned, if it is one finite advantage (or None) per rollout or token."""
    if not isinstance(estimate, Advantages):
        raise contract_error(label, f"{type(estimate).__name__} {estimate!r:.80}", "an Advantages")
    values: Any = estimate.values
    if not isinstance(values, Sequence | np.ndarray) or isinstance(values, str):
        raise contract_error(label, f"Advantages of a {type(values).__name__}", "a list of one value per rollout")
    if len(values) != len(rollouts):
        raise contract_error(label, f"{len(values)} advantages for {len(rollouts)} rollouts", "one per rollout")
    for rollout, value in zip(rollouts, values):
        if value is None:
            continue
        name, count = f"{rollout.prompt_id}#{rollout.group_index}", len(rollout.completion_ids)
        try:
            array = np.asarray(value, np.float32)
        except (TypeError, ValueError) as error:
            raise contract_error(label, f"{value!r:.80} for {name}", "numbers") from error
        if array.shape not in ((), (count,)):
            raise contract_error(
                label, f"an advantage of shape {array.shape} for {name}", f"a number, or shape ({count},)"
            )
        if not np.isfinite(array).all():
            raise contract_error(
                label, f"{value!r:.80} for {name}", "finite numbers, or None where the score is missing"
            )
    return estimate


def check_returns(estimate: Advantages, rollouts: Sequence[Rollout], label: str) -> Advantages:
    """Return what an estimator with a critic returned, if every advantage comes with finite returns ``[T]``."""
    if estimate.returns is None or len(estimate.returns) != len(rollouts):
        raise contract_error(label, "no returns for its critic", "Advantages.returns, one array per rollout")
    for rollout, value, row in zip(rollouts, estimate.values, estimate.returns):
        shape = (len(rollout.completion_ids),)
        if value is not None and (row is None or np.shape(row) != shape or not np.isfinite(row).all()):
            raise contract_error(
                label,
                f"returns {row!r:.80} for {rollout.prompt_id}#{rollout.group_index}",
                f"finite numbers of shape {shape}",
            )
    return estimate


def check_rollouts(answer: Any, names: Sequence[tuple[str, int]], label: str) -> list[Rollout]:
    """Rollouts, if they are those of ``names`` (prompt id, group index), in that order, each with its logprobs."""
    if not isinstance(answer, Sequence) or len(answer) != len(names):
        rollouts = isinstance(answer, Sequence) and f"{len(answer)} rollouts"
        number = rollouts or f"{type(answer).__name__} {answer!r:.80}"
        raise contract_error(label, f"{number} for {len(names)} requests", "a list with one Rollout per request")
    for (prompt_id, index), rollout in zip(names, answer):
        name = f"{prompt_id}#{index}"
        if not isinstance(rollout, Rollout):
            raise contract_error(label, f"{type(rollout).__name__} {rollout!r:.80} for {name}", "a Rollout")
        if (rollout.prompt_id, rollout.group_index) != (prompt_id, index):
            raise contract_error(
                label,
                f"the rollout of {rollout.prompt_id}#{rollout.group_index} in the place of {name}",
                "rollouts in the order of the requests",
            )
        if np.shape(rollout.logprobs_T) != (len(rollout.completion_ids),) or not np.isfinite(rollout.logprobs_T).all():
            raise contract_error(
                label,
                f"logprobs {rollout.logprobs_T!r:.80} for the {len(rollout.completion_ids)} tokens of {name}",
                "a finite log-probability of each sampled token",
            )
    return list(answer)


def check_rows(rows: Any, label: str) -> list[Mapping[str, Any]]:
    """Return what a dataset returned, if it is a list of mappings."""
    if not isinstance(rows, list):
        raise contract_error(label, f"{type(rows).__name__} {rows!r:.80}", "a list of rows")
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise contract_error(label, f"{type(row).__name__} {row!r:.80} as row {number + 1}", "a mapping")
    return rows


def requested(groups: Sequence[PromptGroup]) -> list[tuple[str, int]]:
    """(Prompt id, group index) of every completion of some groups."""
    return [(g.prompt.id, i) for g in groups for i in range(g.group_size)]


class CheckedEngine:
    """What an agent samples with: a rollout engine whose every answer is checked."""

    on_ended: Callable[[int], None] | None = None
    """See :class:`ReportsProgress`; an agent that samples turns calls it for each episode that has ended."""

    def __init__(self, engine: RolloutEngine, label: str = "") -> None:
        self.engine, self.label = engine, label or label_of(engine)

    @contextmanager
    def reporting(self, on_ended: Callable[[int], None]) -> Generator[None, None, None]:
        """A context in which agents and the engine, if it reports progress, call ``on_ended``."""
        reporters = [part for part in (self, self.engine) if isinstance(part, ReportsProgress)]
        for part in reporters:
            part.on_ended = on_ended
        try:
            yield
        finally:
            for part in reporters:
                part.on_ended = None

    def generate(
        self, requests: Sequence[RolloutRequest], sampling: SamplingParams, policy_version: int
    ) -> list[Rollout]:
        """One rollout per request, in order."""
        with component_errors(self.label, "generate()"):
            try:
                answer: Any = self.engine.generate(requests, sampling, policy_version)
            except MalformedRollout as error:
                raise contract_error(self.label, f"a {error}", "one log-probability per sampled token") from error
        check_answers(answer, requests, sampling, self.label)
        return list(answer)

    def open_stream(self, sampling: SamplingParams, policy_version: int) -> CheckedStream | None:
        """The engine's stream of turns; None where it has none."""
        opens = getattr(self.engine, "open_stream", None)
        if opens is None:
            return None
        with component_errors(self.label, "open_stream()"):
            stream: Any = opens(sampling, policy_version)
        if stream is None:
            return None
        missing = [name for name in ("waiting", "submit", "take", "forget", "close") if not hasattr(stream, name)]
        if missing:
            raise contract_error(
                self.label, f"{type(stream).__name__} without {', '.join(missing)}", "a TurnStream, or None"
            )
        return CheckedStream(stream, sampling, self.label)


class CheckedStream:
    """A stream of turns whose every turn is checked."""

    def __init__(self, stream: TurnStream, sampling: SamplingParams, label: str) -> None:
        self.stream, self.sampling, self.label = stream, sampling, label
        self._under_way: dict[Hashable, RolloutRequest] = {}

    @property
    def waiting(self) -> int:
        """Turns that were submitted and not taken."""
        return len(self._under_way)

    def submit(self, episode: Hashable, request: RolloutRequest) -> None:
        """Add a turn of an episode that has none under way."""
        if episode in self._under_way:
            raise ValueError(f"{request.prompt_id}#{request.group_index} has a turn under way already")
        with component_errors(self.label, "submit() of the stream"):
            self.stream.submit(episode, request)
        self._under_way[episode] = request

    def take(self, steps: int | None = None) -> list[tuple[Hashable, Rollout]]:
        """What has ended."""
        with component_errors(self.label, "take() of the stream"):
            try:
                answer: Any = self.stream.take(steps)
            except MalformedRollout as error:
                raise contract_error(self.label, f"a {error}", "one log-probability per sampled token") from error
        pairs = isinstance(answer, list) and all(isinstance(row, tuple) and len(row) == 2 for row in answer)
        if not pairs:
            raise contract_error(self.label, f"{answer!r:.80} from take()", "a list of (episode, Rollout)")
        if steps is None and not answer and self._under_way:
            count = len(self._under_way)
            raise contract_error(self.label, f"no turn from take() while {count} are under way", "one at least")
        for episode, rollout in answer:
            request = self._under_way.pop(episode, None)
            if request is None:
                raise contract_error(
                    self.label, f"a turn of an episode that has none under way ({rollout!r:.80})", "each turn once"
                )
            check_answers([rollout], [request], self.sampling, self.label)
        return answer

    def forget(self, episode: Hashable) -> None:
        """The episode has no further turn."""
        with component_errors(self.label, "forget() of the stream"):
            self.stream.forget(episode)

    def close(self) -> None:
        """Give up what is under way."""
        self._under_way.clear()
        self.stream.close()


def check_answers(answer: Any, requests: Sequence[RolloutRequest], sampling: SamplingParams, label: str) -> None:
    """Refuse rollouts that are not what was asked for."""
    rollouts = check_rollouts(answer, [(r.prompt_id, r.group_index) for r in requests], label)
    for request, rollout in zip(requests, rollouts):
        name = f"{request.prompt_id}#{request.group_index}"
        if tuple(rollout.prompt_ids) != tuple(request.prompt_ids):
            raise contract_error(
                label, f"a rollout of {name} with other prompt tokens than asked for", "the request's prompt_ids"
            )
        limit = min(sampling.max_tokens, request.max_tokens or sampling.max_tokens)
        if len(rollout.completion_ids) > limit:
            raise contract_error(
                label, f"{len(rollout.completion_ids)} tokens for {name}", f"at most the {limit} that were asked for"
            )
